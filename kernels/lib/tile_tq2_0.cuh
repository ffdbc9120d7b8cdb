// tq2_0: `d * (q - 1)`; words: 16 of two-bit codes.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 132u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[4u + 8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    return Scale{tile_f16(tile, row), 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 8u * (quad >> 5u) + (quad & 7u));
    return byte_codes(words >> (2u * ((quad >> 3u) & 3u)), 3u, 1.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
