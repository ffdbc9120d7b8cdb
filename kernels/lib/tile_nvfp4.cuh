// nvfp4: `E4M3 * E2M1`; words: 4 scale bytes, 8 of nibbles.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 72u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 4u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = true;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    auto byte = field(SELF_word(tile, table, row, 0u), 8u * run, 255u);
    auto exponent = field(byte, 3u, 15u);
    auto mantissa = byte & 7u;
    auto normal = float_of(((exponent + 120u) << 23u) | (mantissa << 20u));
    float small = float(mantissa) / 512.0f;
    auto value = (exponent == 0u ? small : normal);
    return Scale{(byte == 127u ? 0.0f : value), 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto words = SELF_word(tile, table, row, 1u + 2u * (quad >> 2u) + (quad & 1u));
    return e2m1_codes(words >> (4u * ((quad >> 1u) & 1u)));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
