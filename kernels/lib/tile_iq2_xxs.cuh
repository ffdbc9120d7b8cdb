// iq2_xxs: `d * (s + 0.5) / 4 * grid * sign`; words per 32 columns: 4 index bytes; 4 sign fields and the scale.
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

// Entries of the codebook, 16 bits each, two a word.
DEVICE unsigned SELF_entries(const unsigned* table, unsigned index) {
    auto words = unsigned(table[index >> 1u]);
    return (words >> (16u * (index & 1u))) & 0xffffu;
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    float code = float(SELF_word(tile, table, row, 2u * (run >> 1u) + 1u) >> 28u);
    return Scale{tile_f16(tile, row) * (code + 0.5f) * 0.25f, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto group = 2u * (quad >> 3u);
    auto entry = (quad >> 1u) & 3u;
    auto part = quad & 1u;
    auto entries = SELF_entries(table, field(SELF_word(tile, table, row, group), 8u * entry, 255u));
    auto signs = seven_signs(SELF_word(tile, table, row, group + 1u) >> (7u * entry));
    return sign_codes(iq2_codes(entries >> (8u * part)), signs >> (4u * part));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
