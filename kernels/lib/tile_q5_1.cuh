// q5_1: `d * q + m`; words: d and m, fifth bits, 4 of nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 48u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 2u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = true;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 31u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
}

// The codes as bytes, not yet centred.
DEVICE unsigned SELF_bytes(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return field(SELF_word(tile, table, row, 2u + (quad & 3u)), 4u * (quad >> 2u), 0x0f0f0f0fu)
        | spread_bits(SELF_word(tile, table, row, 1u) >> (4u * quad), 4u);
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto header = SELF_word(tile, table, row, 0u);
    return Scale{low_f16(header), high_f16(header)};
}

DEVICE unsigned SELF_packed(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return SELF_bytes(tile, table, row, quad);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_bytes(tile, table, row, quad), 255u, 0.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned zero, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_packed(tile, table, row, quad), zero, to[0]);
}
