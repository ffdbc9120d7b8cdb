// f32: one word a column; a tile here is 16 of the layout.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 128u;
constexpr unsigned SELF_STEP = 4u;
constexpr unsigned SELF_RUNS = 1u;
constexpr bool SELF_SCALED = false;
constexpr bool SELF_MIN = false;
constexpr bool SELF_SPLIT = false;
constexpr unsigned SELF_TOP = 0u;
constexpr unsigned SELF_PARTS = 3u;
constexpr bool SELF_BF16 = true;

DEVICE Scale SELF_scale(const unsigned*, const unsigned*, unsigned, unsigned) { return {1.0f, 0.0f}; }

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned*, unsigned row, unsigned quad) {
    const unsigned* at = tile + 32u * quad + row;
    return {float_of(at[0]), float_of(at[8]), float_of(at[16]), float_of(at[24])};
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned*, unsigned row, unsigned quad, unsigned, unsigned left,
                          unsigned (&to)[SELF_PARTS][2]) {
    // Rows end inside a quad.
    const unsigned* at = tile + 32u * quad + row;
    split_bf16({left > 0u ? float_of(at[0]) : 0.0f, left > 1u ? float_of(at[8]) : 0.0f,
                left > 2u ? float_of(at[16]) : 0.0f, left > 3u ? float_of(at[24]) : 0.0f},
               to);
}
