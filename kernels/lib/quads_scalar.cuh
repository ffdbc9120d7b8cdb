// quads_scalar: activations of any row length, stride and offset; what lies behind the end of a row reads as zero.
#include "lib/device.cuh"

// Elements `i .. i + 4` of the row of `n` elements that starts at element `row`.
DEVICE float4 SELF_quad(const float* data, size_t row, unsigned i, unsigned n) {
    const float* at = data + row + i;
    return {i < n ? at[0] : 0.0f, i + 1u < n ? at[1] : 0.0f, i + 2u < n ? at[2] : 0.0f, i + 3u < n ? at[3] : 0.0f};
}
