// hc_mix: the gated mean of the streams of a hyper-connected residual.
// One block per chunk of a token's channels; each thread strides over the chunk and sums the streams in order.
// Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/numeric.cuh"

KERNEL hc_mix(const float* __restrict__ x, const float* __restrict__ gate, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    if (part.first >= part.end) {
        return;
    }
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        float sum = 0.0f;
        for (unsigned c = 0; c < p.n1; c++) {
            unsigned row = part.row * p.n1 + c;
            // The argument is clamped where the factor has long reached its limit.
            float g = fminf(fmaxf(gate[size_t(row) * p.n + i], -128.0f), 128.0f);
            sum += x[a_row(p, row) + i] * sigmoid(g);
        }
        y[size_t(part.row) * p.n + i] = sum * p.weight;
    }
}
