// moe_combine: y[t] = sum_j weights[t, j] * x[t, j] + g[t] * shared[t] + residual[t].
// One block per chunk of a row; each thread strides over the chunk and sums its column in order. Bound by memory.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"

KERNEL moe_combine(const float* __restrict__ x, const float* __restrict__ weights,
                   const float* __restrict__ shared_out, const float* __restrict__ gate,
                   const float* __restrict__ residual, float* __restrict__ y, const Params p) {
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    unsigned t = index / p.n_chunks;
    unsigned first = (index % p.n_chunks) * p.chunk;
    unsigned end = first + p.chunk < p.n ? first + p.chunk : p.n;
    float factor = GATED ? sigmoid(gate[p.gate_off + size_t(t) * p.gate_s]) : 1.0f;
    const float* w_row = weights + p.w_off + size_t(t) * p.k;
    const float* x_row = x + p.x_off + size_t(t) * p.k * p.n;
    for (unsigned i = first + thread_id(); i < end; i += THREADS) {
        float sum = 0.0f;
        for (unsigned j = 0u; j < p.k; j++) {
            sum = fmaf(w_row[j], x_row[size_t(j) * p.n + i], sum);
        }
        if (SHARED_EXPERT) {
            sum = fmaf(factor, shared_out[p.shared_off + size_t(t) * p.shared_s + i], sum);
        }
        if (RESIDUAL) {
            sum += residual[p.residual_off + size_t(t) * p.residual_s + i];
        }
        y[size_t(t) * p.n + i] = sum;
    }
}
