// iq1_m: `d * (2 s + 1) * (grid + delta)`; words: 8 of index bytes, 4 of nibbles (high index bits, sign of delta), 2
// of u16 with 3-bit scales and the nibbles of d.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 112u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 16u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = true;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
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
    auto w0 = SELF_word(tile, table, row, 12u);
    auto w1 = SELF_word(tile, table, row, 13u);
    auto d = low_f16(
        field(w0, 12u, 15u)
            | (field(w0, 28u, 15u) << 4u)
            | (field(w1, 12u, 15u) << 8u)
            | (field(w1, 28u, 15u) << 12u)
    );
    auto word = (run > 7u ? w1 : w0);
    auto code = field(word, 16u * ((run >> 2u) & 1u) + 3u * (run & 3u), 7u);
    return Scale{d * float(1u + 2u * code), 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto entry = quad >> 1u;
    auto nibble = field(SELF_word(tile, table, row, 8u + (entry >> 3u)), 4u * (entry & 7u), 15u);
    auto low = field(SELF_word(tile, table, row, entry >> 2u), 8u * (entry & 3u), 255u);
    auto entries = SELF_entries(table, low | ((nibble & 7u) << 8u));
    auto delta = (nibble > 7u ? -0.125f : 0.125f);
    return SELF_codes(entries >> (8u * (quad & 1u)), delta);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
