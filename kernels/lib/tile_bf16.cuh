// bf16: two columns a word, each the upper half of an f32; a tile here is 8 of the layout.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 64u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 1u;
constexpr bool SELF_SCALED = false;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 1u;
constexpr bool SELF_BF16 = true;

DEVICE Scale SELF_scale(const unsigned*, const unsigned*, unsigned, unsigned) { return {1.0f, 0.0f}; }

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned*, unsigned row, unsigned quad) {
    unsigned w0 = tile[16u * quad + row];
    unsigned w1 = tile[16u * quad + 8u + row];
    return {float_of(w0 << 16u), float_of(w0 & 0xffff0000u), float_of(w1 << 16u), float_of(w1 & 0xffff0000u)};
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned*, unsigned row, unsigned quad, unsigned, unsigned left,
                          unsigned (&to)[SELF_PARTS][2]) {
    // Rows end inside a quad.
    to[0][0] = left > 0u ? tile[16u * quad + row] : 0u;
    to[0][1] = left > 2u ? tile[16u * quad + 8u + row] : 0u;
}
