// Four channels of a cache row of f32.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* at = data + row + 4u * quad;
    return {float_of(at[0]), float_of(at[1]), float_of(at[2]), float_of(at[3])};
}
