// iq2_s: `d * (s + 0.5) / 4 * grid * sign`; words: 8 of index bytes, 8 of sign bits, 2 of high index bits, 2 of
// scale nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 164u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = true;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[4u + 8u * word + row];
}

// Entries of the codebook, 16 bits each, two a word.
DEVICE unsigned SELF_entries(const unsigned* table, unsigned index) {
    auto words = unsigned(table[index >> 1u]);
    return (words >> (16u * (index & 1u))) & 0xffffu;
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    float code = float(field(SELF_word(tile, table, row, 18u + (run >> 3u)), 4u * (run & 7u), 15u));
    return Scale{tile_f16(tile, row) * (code + 0.5f) * 0.25f, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto entry = quad >> 1u;
    auto part = quad & 1u;
    auto low = field(SELF_word(tile, table, row, entry >> 2u), 8u * (entry & 3u), 255u);
    auto high = field(SELF_word(tile, table, row, 16u + (entry >> 4u)), 2u * (entry & 15u), 3u);
    auto entries = SELF_entries(table, low | (high << 8u));
    auto signs = SELF_word(tile, table, row, 8u + (quad >> 3u)) >> (4u * (quad & 7u));
    return sign_codes(iq2_codes(entries >> (8u * part)), signs);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
