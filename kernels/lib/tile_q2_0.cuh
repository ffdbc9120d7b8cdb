// q2_0: `d * (q - 1)`; words: 4 of two-bit codes.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 36u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 4u;
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
    auto bits = SELF_word(tile, table, row, quad >> 2u) >> (8u * (quad & 3u));
    auto one = 1.0f;
    return float4{
        float(field(bits, 0u, 3u)) - one,
        float(field(bits, 2u, 3u)) - one,
        float(field(bits, 4u, 3u)) - one,
        float(field(bits, 6u, 3u)) - one,
    };
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
