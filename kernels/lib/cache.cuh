// Rows of a paged cache (`core/src/format/cache_row.rs`): what the pieces `cache_TYPE` share. Such a piece offers
//   SELF_quad(data, p, row, quad) -> float4
// four channels of the row that starts at word `row`; block types know their first word of blocks from `p.SELF_narrow`.
#pragma once
#include "lib/device.cuh"

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
