// mxfp4: `2^(e - 127) * E2M1`; in front of a tile 8 exponent bytes, words: 4 of nibbles.
// Tiles are not whole steps of 4 words.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 34u;
constexpr unsigned SELF_STEP = 2u;
constexpr unsigned SELF_RUNS = 2u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned*, unsigned row, unsigned) {
    unsigned e = field(tile[row / 4u], 8u * (row % 4u), 255u);
    // Exponent 0 is 2^-127, a subnormal.
    return {float_of(e == 0u ? 0x00400000u : e << 23u), 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned*, unsigned row, unsigned quad) {
    return e2m1_codes(tile[2u + 8u * (quad & 3u) + row] >> (4u * (quad >> 2u)));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
