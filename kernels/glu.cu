// glu: the activation of one tensor times another.
// One block per chunk of a row; each thread strides over the chunk. Bound by memory.
#include "lib/activation.cuh"
#include "lib/elementwise.cuh"
#include "lib/repeated.cuh"

KERNEL glu(const float* __restrict__ gate, const float* __restrict__ up, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    const float* gate_at = gate + a_row(p, part.row);
    const float* up_at = up + b_row(p, part.row);
    float* y_at = y + size_t(part.row) * p.n;
    unsigned column = b_first(p, part.first + thread_id());
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        y_at[i] = activation(gate_at[i]) * up_at[column];
        column = b_next(p, column);
    }
}
