// q3_k: `d * (s - 32) * (q - 4)`; words: 8 of third bits, 16 of two-bit codes, 3 of six-bit scales.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 220u;
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

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto byte = 8u * (run & 3u);
    auto low = field(SELF_word(tile, table, row, 24u + ((run >> 2u) & 1u)), byte + 4u * (run >> 3u), 15u);
    auto high = field(SELF_word(tile, table, row, 26u), byte + 2u * (run >> 2u), 3u);
    float code = float(low | (high << 4u)) - 32.0f;
    return Scale{tile_f16(tile, row) * code, 0.0f};
}

// The codes as bytes, not yet centred.
DEVICE unsigned SELF_bytes(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 8u + 8u * (quad >> 5u) + (quad & 7u));
    auto low = field(words, 2u * ((quad >> 3u) & 3u), 0x03030303u);
    auto high = field(SELF_word(tile, table, row, quad & 7u), quad >> 3u, 0x01010101u);
    return low | (high << 2u);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_bytes(tile, table, row, quad), 7u, 4.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_bytes(tile, table, row, quad), 4u, to[0]);
}
