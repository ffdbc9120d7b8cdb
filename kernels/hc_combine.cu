// hc_combine: adds a block's result to every stream of a hyper-connected residual.
// One block per chunk of a token's channels; each thread strides over the chunk, so the result is read once.
// Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/hc_weight.cuh"

KERNEL hc_combine(const float* __restrict__ r, const float* __restrict__ x, const float* __restrict__ inject,
                  float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* inject_at = inject + row_offset(part.row, p.inject_n1, p.inject_s0, p.inject_s1, p.inject_off);
    const float* x_at = x + size_t(part.row) * p.n;
    for (unsigned c = 0; c < p.n1; c++) {
        unsigned row = part.row * p.n1 + c;
        const float* r_at = r + a_row(p, row);
        float* y_at = y + size_t(row) * p.n;
        float weight = hc_weight(inject_at[c], p.scale);
        for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
            y_at[i] = r_at[i] + weight * x_at[i];
        }
    }
}
