// q8_0: `d * i8`; words: 8 of bytes.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 68u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 2u;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = false;

DEVICE unsigned SELF_word(const unsigned* tile, const unsigned* table, unsigned row, unsigned word) {
    return tile[4u + 8u * word + row];
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    return Scale{tile_f16(tile, row), 0.0f};
}

DEVICE unsigned SELF_packed(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return SELF_word(tile, table, row, quad);
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    return signed_codes(SELF_word(tile, table, row, quad));
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_bytes(SELF_word(tile, table, row, quad) ^ 0x80808080u, 128u, to[0]);
}
