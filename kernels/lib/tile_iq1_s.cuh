// iq1_s: `d * (2 s + 1) * (grid + delta)`; words: 8 of index bytes, 4 of u16 with high index bits, scale and sign of
// delta.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 100u;
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

// Codes -1, 0, 1 plus `delta`.
DEVICE float4 SELF_codes(unsigned entries, float delta) {
    auto shift = delta - 1.0f;
    return float4{
        float(field(entries, 0u, 3u)) + shift,
        float(field(entries, 2u, 3u)) + shift,
        float(field(entries, 4u, 3u)) + shift,
        float(field(entries, 6u, 3u)) + shift,
    };
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto code = field(SELF_word(tile, table, row, 8u + (run >> 2u)), 16u * ((run >> 1u) & 1u) + 12u, 7u);
    float factor = float(1u + 2u * code);
    return Scale{tile_f16(tile, row) * factor, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto entry = quad >> 1u;
    auto w = field(SELF_word(tile, table, row, 8u + (quad >> 4u)), 16u * ((quad >> 3u) & 1u), 0xffffu);
    auto low = field(SELF_word(tile, table, row, entry >> 2u), 8u * (entry & 3u), 255u);
    auto entries = SELF_entries(table, low | (field(w, 3u * (entry & 3u), 7u) << 8u));
    auto delta = (w > 0x7fffu ? -0.125f : 0.125f);
    return SELF_codes(entries >> (8u * (quad & 1u)), delta);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
