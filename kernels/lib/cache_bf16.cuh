// Four channels of a cache row of bf16: the upper half of an f32.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = false;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 2u * quad;
    return {float_of(at[0] << 16u), float_of(at[0] & 0xffff0000u), float_of(at[1] << 16u),
            float_of(at[1] & 0xffff0000u)};
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params&, unsigned quad) {
    to[0] = reinterpret_cast<const uint2*>(row)[quad];
}

DEVICE float SELF_scale(const unsigned*, unsigned) { return 1.0f; }
