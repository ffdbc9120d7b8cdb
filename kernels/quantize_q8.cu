// quantize_q8: blocks of 32 activations as signed bytes with a scale and the scaled sum of the bytes.
// Eight lanes own a block, a quad each: d = max |x| / 127, q = x / d rounded half away from zero, s = (d, d * sum q).
// Bound by memory.
#include "lib/grid.cuh"
#include "lib/rows.cuh"

// NaN becomes 0 and an infinity the largest finite value.
DEVICE float finite(float v) {
    unsigned bits = bits_of(v);
    unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0.0f;
    }
    return magnitude == 0x7f800000u ? float_of((bits & 0x80000000u) | 0x7f7fffffu) : v;
}

// |v| / d rounded half away from zero, with the sign of v. A quotient may be off by some roundings, products and
// comparisons may not: they settle the code, so every device gives the same one.
DEVICE int code(float v, float d, float inverse) {
    float x = fabsf(v);
    float c = fminf(floorf(x * inverse + 0.5f), 127.0f);
    bool above = c < 127.0f && x >= (c + 0.5f) * d;
    bool below = x < (c - 0.5f) * d;
    c += (above ? 1.0f : 0.0f) - (below ? 1.0f : 0.0f);
    return int(v < 0.0f ? -c : c);
}

KERNEL quantize_q8_quads(const float* __restrict__ x_data, unsigned* __restrict__ q, float2* __restrict__ s,
                         const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    unsigned n_quads = p.n / 4u;
    // Lanes behind the end take part in what the warp does together.
    bool is_quad = index < p.n_rows * n_quads;
    float4 v = {};
    if (is_quad) {
        size_t row = row_offset(index / n_quads, p.x_n1, p.x_s0, p.x_s1, p.x_off);
        float4 quad = x_quad(x_data, row, 4u * (index % n_quads), p.n);
        v = {finite(quad.x), finite(quad.y), finite(quad.z), finite(quad.w)};
    }
    float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (unsigned n = 1u; n < 8u; n *= 2u) {
        largest = fmaxf(largest, shuffle_xor(largest, n));
    }
    float d = largest * p.step;
    // A subnormal scale may be flushed: such a block is zero.
    bool is_zero = d < p.smallest;
    float divisor = is_zero ? 1.0f : d;
    float inverse = 1.0f / divisor;
    int c[4] = {code(v.x, divisor, inverse), code(v.y, divisor, inverse), code(v.z, divisor, inverse),
                code(v.w, divisor, inverse)};
    unsigned word = 0u;
    int sum = 0;
    for (unsigned e = 0u; e < 4u; e++) {
        int chosen = is_zero ? 0 : c[e];
        word |= (unsigned(chosen) & 255u) << (8u * e);
        sum += chosen;
    }
    for (unsigned n = 1u; n < 8u; n *= 2u) {
        sum += shuffle_xor(sum, n);
    }
    if (!is_quad) {
        return;
    }
    q[index] = word;
    if (index % 8u == 0u) {
        float scale = is_zero ? 0.0f : d;
        s[index / 8u] = {scale, scale * float(sum)};
    }
}
