// peak_mma_f16, peak_mma_bf16, peak_mma_s8: products of matrices in registers, four accumulators a warp.
// peak_mma_dot4: sixteen chains of products of four bytes a thread, which is what steps of few tokens multiply with.
#include "lib/device.cuh"

// Nothing that the compiler knows, and nothing that overflows: small numbers in each type.
DEVICE unsigned small(const unsigned* x) { return x[0] & 0x01010101u; }

template <class Sum, class Multiply> DEVICE void products(const unsigned* x, float* y, unsigned n, Multiply multiply) {
    unsigned word = small(x);
    unsigned a[4] = {word, word, word, word}, b[2] = {word, word};
    Sum c[4][4] = {};
    for (unsigned turn = 0u; turn < n; turn++) {
        for (unsigned i = 0u; i < 4u; i++) {
            multiply(c[i], a, b);
        }
    }
    float sum = 0.0f;
    for (unsigned i = 0u; i < 4u; i++) {
        for (unsigned e = 0u; e < 4u; e++) {
            sum += float(c[i][e]);
        }
    }
    y[block_id().x * THREADS + thread_id()] = sum;
}

KERNEL peak_mma_f16(const unsigned* __restrict__ x, float* __restrict__ y, const Params p) {
    products<float>(x, y, p.n, [](auto& c, auto& a, auto& b) { mma_f16(c, a, b); });
}

KERNEL peak_mma_bf16(const unsigned* __restrict__ x, float* __restrict__ y, const Params p) {
    products<float>(x, y, p.n, [](auto& c, auto& a, auto& b) { mma_bf16(c, a, b); });
}

KERNEL peak_mma_s8(const unsigned* __restrict__ x, float* __restrict__ y, const Params p) {
    products<int>(x, y, p.n, [](auto& c, auto& a, auto& b) { mma_s8(c, a, b); });
}

KERNEL peak_mma_dot4(const unsigned* __restrict__ x, float* __restrict__ y, const Params p) {
    int word = int(small(x));
    int chain[16];
    for (int i = 0; i < 16; i++) {
        chain[i] = i;
    }
    for (unsigned turn = 0u; turn < p.n; turn++) {
        for (int i = 0; i < 16; i++) {
            chain[i] = dot4(word, word, chain[i]);
        }
    }
    int sum = 0;
    for (int i = 0; i < 16; i++) {
        sum += chain[i];
    }
    y[block_id().x * THREADS + thread_id()] = float(sum);
}
