// mul: multiplies two tensors, the second repeated.
// One block per chunk of a row; each thread strides over the chunk. Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/repeated.cuh"

KERNEL mul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* a_at = a + a_row(p, part.row);
    const float* b_at = b + b_row(p, part.row);
    float* y_at = y + size_t(part.row) * p.n;
    unsigned column = b_first(p, part.first + thread_id());
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        y_at[i] = a_at[i] * b_at[column];
        column = b_next(p, column);
    }
}
