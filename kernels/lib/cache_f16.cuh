// Four channels of a cache row of f16.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = false;
constexpr bool SELF_SCALED = false;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 2u * quad;
    return {f32_of_f16(at[0] & 0xffffu), f32_of_f16(at[0] >> 16u), f32_of_f16(at[1] & 0xffffu),
            f32_of_f16(at[1] >> 16u)};
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params&, unsigned quad) {
    to[0] = reinterpret_cast<const uint2*>(row)[quad];
}

DEVICE float SELF_scale(const unsigned*, unsigned) { return 1.0f; }
