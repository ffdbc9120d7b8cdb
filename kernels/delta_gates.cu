// delta_gates: decay and writing strength of a gated delta net. A thread owns one head of one token. Bound by the
// start of a launch.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/rows.cuh"

DEVICE float softplus(float x) {
    float e = exp_neg(-fabsf(x));
    // ln(1 + e) = 2 atanh(e / (2 + e)), relatively exact for small e too. The next term is 1e-9 of the sum.
    float s = e / (2.0f + e);
    float q = s * s;
    float sum = 1.0f / 15.0f;
    sum = sum * q + 1.0f / 13.0f;
    sum = sum * q + 1.0f / 11.0f;
    sum = sum * q + 1.0f / 9.0f;
    sum = sum * q + 1.0f / 7.0f;
    sum = sum * q + 1.0f / 5.0f;
    sum = sum * q + 1.0f / 3.0f;
    sum = sum * q + 1.0f;
    return fmaxf(x, 0.0f) + 2.0f * s * sum;
}

KERNEL delta_gates(const float* __restrict__ alpha, const float* __restrict__ beta, const float* __restrict__ a,
                   const float* __restrict__ dt, float* __restrict__ gates, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    if (index >= p.n_items) {
        return;
    }
    unsigned row = index / p.n;
    unsigned i = index % p.n;
    unsigned head = index % p.n_heads;
    size_t decay = size_t(index / p.n_heads) * 2u * p.n_heads + head;
    float x = alpha[row_offset(row, p.alpha_n1, p.alpha_s0, p.alpha_s1, p.alpha_off) + i] + dt[p.dt_off + head];
    gates[decay] = a[p.a_off + head] * softplus(x);
    float b = beta[row_offset(row, p.beta_n1, p.beta_s0, p.beta_s1, p.beta_off) + i];
    gates[decay + p.n_heads] = sigmoid(fminf(fmaxf(b, -128.0f), 128.0f));
}
