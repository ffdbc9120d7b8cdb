// unary: a function of each element.
// One block per chunk of a row; each thread strides over the chunk. KIND is a constant, so one case remains.
// Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/numeric.cuh"

KERNEL unary(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* x_at = x + a_row(p, part.row);
    float* y_at = y + size_t(part.row) * p.n;
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        float v = x_at[i];
        // The argument is clamped where the factor has long reached its limit.
        float s = sigmoid(fminf(fmaxf(v, -128.0f), 128.0f));
        y_at[i] = KIND == 0u ? v * s : s;
    }
}
