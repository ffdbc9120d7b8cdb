// q2_k: `d * s * q - dmin * m`; words: 4 of scale and minimum nibbles, 16 of two-bit codes, d and dmin.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 168u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = true;
constexpr bool SELF_SPLIT = true;
constexpr unsigned SELF_TOP = 3u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto header = SELF_word(tile, table, row, 20u);
    auto nibbles = SELF_word(tile, table, row, run >> 2u) >> (8u * (run & 3u));
    return Scale{
        low_f16(header) * float(field(nibbles, 0u, 15u)),
        -(high_f16(header) * float(field(nibbles, 4u, 15u))),
    };
}

// The codes as bytes.
DEVICE unsigned SELF_bytes(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 4u + 8u * (quad >> 5u) + (quad & 7u));
    return field(words, 2u * ((quad >> 3u) & 3u), 0x03030303u);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_bytes(tile, table, row, quad), 255u, 0.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned zero, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_bytes(tile, table, row, quad), zero, to[0]);
}
