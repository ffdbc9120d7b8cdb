// copy_cast: copies into contiguous storage and converts the element type.
// One block per chunk of the output's words; each thread strides over the chunk. A word holds one element of 32 bits
// or two of 16. Types are parameters: 0 f32, 1 f16, 2 bf16, 3 i32. Bound by memory.
#include "lib/elementwise.cuh"

constexpr unsigned F16 = 1u;
constexpr unsigned BF16 = 2u;
constexpr unsigned I32 = 3u;

DEVICE bool is_half(unsigned kind) { return kind == F16 || kind == BF16; }

// Element `e` of the input, its bits in the low part of the word.
DEVICE unsigned fetch(const unsigned* x, const Params& p, unsigned e) {
    size_t at = row_offset(e / p.x_n, p.x_n1, p.x_a_s0, p.x_a_s1, p.x_a_off) + e % p.x_n;
    if (is_half(p.x_type)) {
        return (x[at / 2u] >> (16u * unsigned(at & 1u))) & 0xffffu;
    }
    return x[at];
}

// f32 to bf16: nearest even, overflow to infinity.
DEVICE unsigned bf16_of_f32(unsigned bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// f32 to i32: towards zero, saturating, NaN to 0.
DEVICE unsigned i32_of_f32(float value) {
    if (value != value) {
        return 0u;
    }
    if (value >= 2147483648.0f) {
        return 0x7fffffffu;
    }
    return unsigned(int(fmaxf(value, -2147483648.0f)));
}

DEVICE unsigned convert(const Params& p, unsigned bits) {
    if (p.x_type == p.y_type) {
        return bits;
    }
    float value = float_of(bits);
    if (p.x_type == F16) {
        value = f32_of_f16(bits);
    } else if (p.x_type == BF16) {
        value = float_of(bits << 16u);
    } else if (p.x_type == I32) {
        value = float(int(bits));
    }
    switch (p.y_type) {
    case F16:
        return f16_of_f32(value);
    case BF16:
        return bf16_of_f32(bits_of(value));
    case I32:
        return i32_of_f32(value);
    default:
        return bits_of(value);
    }
}

KERNEL copy_cast(const unsigned* __restrict__ x, unsigned* __restrict__ y, const Params p) {
    Part part = block_part(p);
    unsigned per_word = is_half(p.y_type) ? 2u : 1u;
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        unsigned word = 0u;
        for (unsigned h = 0u; h < per_word; h++) {
            unsigned e = i * per_word + h;
            if (e < p.n_elems) {
                word |= convert(p, fetch(x, p, e)) << (16u * h);
            }
        }
        y[i] = word;
    }
}
