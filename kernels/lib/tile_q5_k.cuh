// q5_k: `d * s * q - dmin * m`; words: d and dmin, 3 of scales and minima, 8 of fifth bits, 32 of nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 352u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = true;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 31u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    return k_scale(
        SELF_word(tile, table, row, 0u),
        SELF_word(tile, table, row, 1u),
        SELF_word(tile, table, row, 2u),
        SELF_word(tile, table, row, 3u),
        run >> 1u
    );
}

DEVICE unsigned SELF_packed(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 12u + 8u * (quad >> 4u) + (quad & 7u));
    auto high = field(SELF_word(tile, table, row, 4u + (quad & 7u)), quad >> 3u, 0x01010101u);
    return field(words, 4u * ((quad >> 3u) & 1u), 0x0f0f0f0fu) | (high << 4u);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_packed(tile, table, row, quad), 255u, 0.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned zero, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_packed(tile, table, row, quad), zero, to[0]);
}
