// peak_fma: chains of multiply-adds in registers: sixteen chains a thread.
#include "lib/device.cuh"

KERNEL peak_fma(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    unsigned index = block_id().x * THREADS + thread_id();
    float m = x[0] * 0.5f;
    float chain[16];
    for (unsigned i = 0u; i < 16u; i++) {
        chain[i] = float(index + i);
    }
    for (unsigned n = 0u; n < p.n; n++) {
        for (unsigned i = 0u; i < 16u; i++) {
            chain[i] = fmaf(chain[i], m, m);
        }
    }
    float sum = 0.0f;
    for (unsigned i = 0u; i < 16u; i++) {
        sum += chain[i];
    }
    y[index] = sum;
}
