// Four channels of a cache row of bf16: the upper half of an f32.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 2u * quad;
    return {float_of(at[0] << 16u), float_of(at[0] & 0xffff0000u), float_of(at[1] << 16u),
            float_of(at[1] & 0xffff0000u)};
}
