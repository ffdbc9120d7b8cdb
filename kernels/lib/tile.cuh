// Tiles of weights (`core/src/format/tile8.rs`), one row of the eight at a time: what the pieces `tile_TYPE` share.
//
// Such a piece, imported under a prefix, offers
//   SELF_TILE    words of a tile of `16 * SELF_RUNS` columns
//   SELF_STEP    words of the unit in which definitions give the distance of row groups
//   SELF_RUNS    runs of 16 columns in a tile
//   SELF_SCALED  whether a value is `scale.a * code (+ scale.b)`, or the code itself
//   SELF_MIN     whether scales have a `b`
//   SELF_SPLIT   whether the two runs of 32 columns have different scales
//   SELF_scale(tile, table, row, run) -> Scale
//   SELF_quad(tile, table, row, quad) -> float4   the codes of four columns
// with `tile` the first word of a tile, `table` the codebook of a type that has one, and `row` 0 .. 7; and for types
// that multiply by int8 activations
//   SELF_packed(tile, table, row, quad) -> unsigned   the same codes as the bytes of a word
// and for the matrix instructions
//   SELF_PARTS   numbers of 16 bits that add up to a code
//   SELF_BF16    whether they are bf16, not f16
//   SELF_TOP     the largest code of a type whose scales have a `b`
//   SELF_operands(tile, table, row, quad, zero, left, to)   the codes of four columns, minus `zero` if SELF_MIN, exactly:
//                `to[part]` is two pairs, the first column in the low half; what is `left` columns on and further, in
//                types whose rows may end inside a quad, is not read and zero
#pragma once
#include "lib/operands.cuh"

// Values of a row: `a * code + b`.
struct Scale {
    float a, b;
};

// The f16 in front of a tile (two rows a word) of a row.
DEVICE float tile_f16(const unsigned* tile, unsigned row) {
    return f32_of_f16((tile[row / 2u] >> (16u * (row % 2u))) & 0xffffu);
}

DEVICE float low_f16(unsigned word) { return f32_of_f16(word & 0xffffu); }
DEVICE float high_f16(unsigned word) { return f32_of_f16(word >> 16u); }

// `(words >> shift) & mask`.
DEVICE unsigned field(unsigned words, unsigned shift, unsigned mask) {
    return (words >> shift) & mask;
}

// The bytes of a word minus `zero`, a whole number: behind the bits of 2^23 a byte counts ones.
DEVICE float4 whole_bytes(unsigned words, float zero) {
    constexpr unsigned BASE = 0x4b000000u;
    float base = float_of(BASE) + zero;
    return {float_of(choose_bytes(words, BASE, 0x7650u)) - base, float_of(choose_bytes(words, BASE, 0x7651u)) - base,
            float_of(choose_bytes(words, BASE, 0x7652u)) - base, float_of(choose_bytes(words, BASE, 0x7653u)) - base};
}

// Four columns, each the low `mask` bits of a byte, minus `zero`.
DEVICE float4 byte_codes(unsigned words, unsigned mask, float zero) {
    if (mask == 255u) {
        return whole_bytes(words, zero);
    }
    float z = float(zero);
    return {
        float(field(words, 0u, mask)) - z,
        float(field(words, 8u, mask)) - z,
        float(field(words, 16u, mask)) - z,
        float(field(words, 24u, mask)) - z,
    };
}

// Four columns of signed bytes.
DEVICE float4 signed_codes(unsigned words) { return whole_bytes(words ^ 0x80808080u, 128.0f); }

// Bit `e` of the low four bits moved to bit `to` of byte `e`.
DEVICE unsigned spread_bits(unsigned bits, unsigned to) {
    // Byte e takes bit e: the product puts a copy at distances of 7 bits.
    auto spread = ((bits & 15u) * 0x00204081u) & 0x01010101u;
    return spread << to;
}

// Bytes `v` in 0..=2 * zero - 1 as signed bytes `v - zero`, zero a power of two up to 64.
DEVICE unsigned packed_minus(unsigned words, unsigned zero) {
    // With the top bit set no byte borrows from its neighbour.
    auto top = 0x80808080u;
    return ((words | top) - unsigned(zero * 0x01010101u)) ^ top;
}

// Negates column `e` when bit `e` of `signs` is set.
DEVICE float4 sign_codes(float4 m, unsigned signs) {
    auto top = 0x80000000u;
    return {
        float_of(bits_of(m.x) ^ ((signs << 31u) & top)),
        float_of(bits_of(m.y) ^ ((signs << 30u) & top)),
        float_of(bits_of(m.z) ^ ((signs << 29u) & top)),
        float_of(bits_of(m.w) ^ ((signs << 28u) & top)),
    };
}

// Eight sign bits from seven: the eighth makes the number of minus signs even.
DEVICE unsigned seven_signs(unsigned signs) {
    auto s = signs & 127u;
    return s | ((bit_count(s) & 1u) << 7u);
}

// The value of each four-bit code of `iq4_nl` and `iq4_xs`: 16 signed bytes in four words.
DEVICE float iq4_value(unsigned code) {
    auto low = ((code & 4u) != 0u ? 0xf6eaddcfu : 0xbfad9881u);
    auto high = ((code & 4u) != 0u ? 0x71594535u : 0x26190d01u);
    auto word = ((code & 8u) != 0u ? high : low);
    auto shift = 24u - 8u * (code & 3u);
    return float(int(word << shift) >> 24u);
}

// Four columns of `iq4_nl` codes in the low nibbles of bytes.
DEVICE float4 iq4_codes(unsigned words) {
    return {
        iq4_value(field(words, 0u, 15u)),
        iq4_value(field(words, 8u, 15u)),
        iq4_value(field(words, 16u, 15u)),
        iq4_value(field(words, 24u, 15u)),
    };
}

// The value of an E2M1 code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.
DEVICE float e2m1_value(unsigned code) {
    // Twice the magnitude fits a nibble.
    auto shift = (code & 7u) * 4u;
    float twice = float((0xc8643210u >> shift) & 15u);
    return ((code & 8u) != 0u ? -0.5f : 0.5f) * twice;
}

// Four columns of E2M1 codes in the low nibbles of bytes.
DEVICE float4 e2m1_codes(unsigned words) {
    return {
        e2m1_value(field(words, 0u, 15u)),
        e2m1_value(field(words, 8u, 15u)),
        e2m1_value(field(words, 16u, 15u)),
        e2m1_value(field(words, 24u, 15u)),
    };
}

DEVICE float iq2_value(unsigned c) {
    return float(8u + 17u * c + (c >> 1u));
}

// Four two-bit codes of an `iq2_*` entry: 8, 25, 43.
DEVICE float4 iq2_codes(unsigned entries) {
    return {
        iq2_value(field(entries, 0u, 3u)),
        iq2_value(field(entries, 2u, 3u)),
        iq2_value(field(entries, 4u, 3u)),
        iq2_value(field(entries, 6u, 3u)),
    };
}

// The scale and the minimum of sub-block `j` of `q4_k` and `q5_k`: six bits each, from 12 packed bytes.
DEVICE Scale k_scale(unsigned header, unsigned w0, unsigned w1, unsigned w2, unsigned j) {
    auto shift = 8u * (j & 3u);
    // Both, rather than a branch.
    auto sc4 = field(w2, shift, 15u) | (field(w0, shift + 6u, 3u) << 4u);
    auto mn4 = field(w2, shift + 4u, 15u) | (field(w1, shift + 6u, 3u) << 4u);
    auto sc = j > 3u ? sc4 : field(w0, shift, 63u);
    auto mn = j > 3u ? mn4 : field(w1, shift, 63u);
    return Scale{low_f16(header) * float(sc), -(high_f16(header) * float(mn))};
}
