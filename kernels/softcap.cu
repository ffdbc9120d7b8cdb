// softcap: bounds values smoothly.
// One block per chunk of a row; each thread strides over the chunk. Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/numeric.cuh"

KERNEL softcap(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* x_at = x + a_row(p, part.row);
    float* y_at = y + size_t(part.row) * p.n;
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        y_at[i] = p.cap * tanh_safe(x_at[i] * p.inv_cap);
    }
}
