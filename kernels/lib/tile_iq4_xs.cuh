// iq4_xs: `d * (s - 32) * VALUES[nibble]`; words: d and high scale bits, low scale nibbles, 32 of nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 272u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto sub = run >> 1u;
    auto header = SELF_word(tile, table, row, 0u);
    auto low = field(SELF_word(tile, table, row, 1u), 4u * sub, 15u);
    auto high = field(header, 16u + 2u * sub, 3u);
    float code = float(low | (high << 4u)) - 32.0f;
    return Scale{low_f16(header) * code, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 2u + 4u * (quad >> 3u) + (quad & 3u));
    return iq4_codes(words >> (4u * ((quad >> 2u) & 1u)));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
