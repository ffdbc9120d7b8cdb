// glu: the activation of one tensor times another.
// One block per chunk of a row; each thread strides over the chunk. KIND is a constant, so one case remains.
// Bound by memory.
#include "lib/elementwise.cuh"
#include "lib/numeric.cuh"
#include "lib/repeated.cuh"

DEVICE float activation(float x) {
    // Arguments are clamped where the factor has long reached its limit.
    float c = fminf(fmaxf(x, -128.0f), 128.0f);
    switch (KIND) {
    case 0u: // swiglu
        return x * sigmoid(c);
    case 1u: // geglu: (1 + tanh(z)) / 2 = sigmoid(2 z); the factor is 2 sqrt(2 / pi)
        return x * sigmoid(1.5957691216f * (c + 0.044715f * c * c * c));
    case 2u: // geglu_erf
        return x * half_erfc_neg(c * 0.70710678118f);
    case 3u: // geglu_quick
        return x * sigmoid(1.702f * c);
    case 4u: // reglu
        return fmaxf(x, 0.0f);
    default: // sigmoid
        return sigmoid(c);
    }
}

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
