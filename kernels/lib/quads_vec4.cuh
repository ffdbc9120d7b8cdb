// quads_vec4: activations whose row length, strides and offset are multiples of four, read four at a time.
#include "lib/device.cuh"

// Elements `i .. i + 4` of the row of `n` elements that starts at element `row`.
DEVICE float4 SELF_quad(const float* data, size_t row, unsigned i, unsigned) {
    return *reinterpret_cast<const float4*>(data + row + i);
}
