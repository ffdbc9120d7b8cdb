// Rows of a paged cache (`core/src/format/cache_row.rs`): what the pieces `cache_TYPE` share. Such a piece offers
//   SELF_quad(data, p, row, quad) -> float4
// four channels of the row that starts at word `row`, and for tensor cores
//   SELF_halves(to, row, p, quad)
// four codes of the row at a pointer as 16-bit floats, bf16 if SELF_BF16, else f16. SELF_PLANES such numbers add up to
// a code. With SELF_SCALED codes are whole numbers, which `SELF_scale(row, b)` multiplies in block b; else they are the
// values. Block types know their first word of blocks from `p.SELF_narrow`.
#pragma once
#include "lib/device.cuh"
#include "lib/split.cuh"

// The f16 scale of a quad's block: scales lie at the front of a row, two a word.
DEVICE float cache_scale(const unsigned* row, unsigned quad) {
    return f32_of_f16((row[quad / 16u] >> (2u * (quad & 8u))) & 0xffffu);
}

// Nibbles, and fifth bits of channels, of a quad: channels 0 to 15 in the low nibbles, 16 to 31 in the high ones.
DEVICE float4 cache_codes(unsigned nibbles, unsigned fifth, unsigned quad, float a, float b) {
    unsigned codes = nibbles >> (quad & 4u);
    unsigned high = fifth >> (4u * (quad & 7u));
    return {
        a * float((codes & 15u) | ((high << 4u) & 16u)) + b,
        a * float(((codes >> 8u) & 15u) | ((high << 3u) & 16u)) + b,
        a * float(((codes >> 16u) & 15u) | ((high << 2u) & 16u)) + b,
        a * float(((codes >> 24u) & 15u) | ((high << 1u) & 16u)) + b,
    };
}

// The same codes as the four bytes of a word.
DEVICE unsigned cache_bytes(unsigned nibbles, unsigned fifth, unsigned quad) {
    unsigned high = (fifth >> (4u * (quad & 7u))) & 15u;
    // Bit i of `high` goes to bit 0 of byte i.
    return ((nibbles >> (quad & 4u)) & 0x0f0f0f0fu) | (((high * 0x00204081u) & 0x01010101u) << 4u);
}

// The bytes of `a` less those of `b` as bf16; a below 128, b up to 128: 0x4300 + byte is the bf16 of 128 + byte.
DEVICE uint2 cache_bf16_of_bytes(unsigned a, unsigned b) {
    return {bf16_pair_sub(choose_bytes(a, 0x43434343u, 0x4140u), choose_bytes(b, 0x43434343u, 0x4140u)),
            bf16_pair_sub(choose_bytes(a, 0x43434343u, 0x4342u), choose_bytes(b, 0x43434343u, 0x4342u))};
}

// Four values as sums of three bf16 each.
DEVICE void cache_planes(uint2 (&to)[3], float4 x) {
    unsigned low[3], high[3];
    split(low, x.x, x.y);
    split(high, x.z, x.w);
    for (unsigned i = 0u; i < 3u; i++) {
        to[i] = {low[i], high[i]};
    }
}
