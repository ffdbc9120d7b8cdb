// Four channels of a cache row of f32.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = false;
constexpr unsigned SELF_PLANES = 3u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 4u * quad;
    return {float_of(at[0]), float_of(at[1]), float_of(at[2]), float_of(at[3])};
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params&, unsigned quad) {
    cache_planes(to, reinterpret_cast<const float4*>(row)[quad]);
}

DEVICE float SELF_scale(const unsigned*, unsigned) { return 1.0f; }
