// iq3_xxs: `d * (s + 0.5) / 2 * grid * sign`; words: 16 of index bytes, 8 of 4 sign fields and the scale.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 196u;
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

// 4, 12, 20, 28, 36, 44, 52, 62.
DEVICE float SELF_value(unsigned c) {
    auto last = (c + 1u) >> 3u;
    return float(4u + 8u * c + 2u * last);
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    float code = float(SELF_word(tile, table, row, 16u + (run >> 1u)) >> 28u);
    return Scale{tile_f16(tile, row) * (code + 0.5f) * 0.5f, 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto entries = SELF_entries(table, field(SELF_word(tile, table, row, quad >> 2u), 8u * (quad & 3u), 255u));
    auto signs = seven_signs(SELF_word(tile, table, row, 16u + (quad >> 3u)) >> (7u * ((quad >> 1u) & 3u)));
    auto codes = float4{
        SELF_value(field(entries, 0u, 7u)),
        SELF_value(field(entries, 3u, 7u)),
        SELF_value(field(entries, 6u, 7u)),
        SELF_value(field(entries, 9u, 7u)),
    };
    return sign_codes(codes, signs >> (4u * (quad & 1u)));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
