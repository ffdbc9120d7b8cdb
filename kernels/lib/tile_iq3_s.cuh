// iq3_s: `d * (1 + 2 s) * grid * sign`; words: 16 of index bytes, 2 of high index bits, 8 of sign bits, scale nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 220u;
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

// 1, 3, .. 15.
DEVICE float SELF_value(unsigned c) {
    return float(1u + 2u * c);
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto code = field(SELF_word(tile, table, row, 26u), 4u * (run >> 1u), 15u);
    float factor = float(1u + 2u * code);
    return Scale{tile_f16(tile, row) * factor, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto low = field(SELF_word(tile, table, row, quad >> 2u), 8u * (quad & 3u), 255u);
    auto high = field(SELF_word(tile, table, row, 16u + (quad >> 5u)), quad & 31u, 1u);
    auto entries = SELF_entries(table, low | (high << 8u));
    auto signs = SELF_word(tile, table, row, 18u + (quad >> 3u)) >> (4u * (quad & 7u));
    auto codes = float4{
        SELF_value(field(entries, 0u, 7u)),
        SELF_value(field(entries, 3u, 7u)),
        SELF_value(field(entries, 6u, 7u)),
        SELF_value(field(entries, 9u, 7u)),
    };
    return sign_codes(codes, signs);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
