// spread_load: every thread loads the activations it needs.
#include "lib/device.cuh"

// Elements `i .. i + 4` of the row of `n` elements that starts at element `row`.
DEVICE float4 SELF_quad(const float* data, size_t row, unsigned i, unsigned n) { return x_quad(data, row, i, n); }
