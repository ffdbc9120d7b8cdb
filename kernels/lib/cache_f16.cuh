// Four channels of a cache row of f16.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 2u * quad;
    return {f32_of_f16(at[0] & 0xffffu), f32_of_f16(at[0] >> 16u), f32_of_f16(at[1] & 0xffffu),
            f32_of_f16(at[1] >> 16u)};
}
