// scale: multiplies by a number and adds another.
// One block per chunk of a row; each thread strides over the chunk. Bound by memory.
#include "lib/elementwise.cuh"

KERNEL scale(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* x_at = x + a_row(p, part.row);
    float* y_at = y + size_t(part.row) * p.n;
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        y_at[i] = p.scale * x_at[i] + p.bias;
    }
}
