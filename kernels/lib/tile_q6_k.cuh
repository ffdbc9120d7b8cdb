// q6_k: `d * s * (q - 32)`; words: 32 of low nibbles, 16 of high bit pairs, 4 of signed scales.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 420u;
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

// The codes as bytes, not yet centred.
DEVICE unsigned SELF_bytes(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto half_block = quad >> 5u;
    auto group = (quad >> 3u) & 3u;
    auto low = SELF_word(tile, table, row, 16u * half_block + 8u * (group & 1u) + (quad & 7u));
    auto high = SELF_word(tile, table, row, 32u + 8u * half_block + (quad & 7u));
    return field(low, 4u * (group >> 1u), 0x0f0f0f0fu)
        | (field(high, 2u * group, 0x03030303u) << 4u);
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto bytes = SELF_word(tile, table, row, 48u + (run >> 2u)) << (24u - 8u * (run & 3u));
    float code = float(int(bytes) >> 24u);
    return Scale{tile_f16(tile, row) * code, 0.0f};
}

DEVICE unsigned SELF_packed(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return packed_minus(SELF_bytes(tile, table, row, quad), 32u);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return byte_codes(SELF_bytes(tile, table, row, quad), 255u, 32.0f);
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_bytes(tile, table, row, quad), 32u, to[0]);
}
