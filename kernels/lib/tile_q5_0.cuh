// q5_0: `d * (q - 16)`; words: fifth bits, 4 of nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 44u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 2u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[4u + 8u * word + row];
}

// The codes as bytes, not yet centred.
DEVICE unsigned SELF_bytes(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return field(SELF_word(tile, table, row, 1u + (quad & 3u)), 4u * (quad >> 2u), 0x0f0f0f0fu)
        | spread_bits(SELF_word(tile, table, row, 0u) >> (4u * quad), 4u);
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    return Scale{tile_f16(tile, row), 0.0f};
}

DEVICE unsigned SELF_packed(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return packed_minus(SELF_bytes(tile, table, row, quad), 16u);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_bytes(tile, table, row, quad), 255u, 16.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_bytes(tile, table, row, quad), 16u, to[0]);
}
