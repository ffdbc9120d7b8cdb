// tq1_0: `d * (digit - 1)`; words: 12 with five base-3 digits a byte, one with four.
#include "lib/tile.cuh"

constexpr unsigned SELF_TILE = 108u;
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

// A byte is a fraction of 256: multiplying by 3 carries out its first digit.
DEVICE unsigned SELF_digit(unsigned v) {
    return ((v & 255u) * 3u) >> 8u;
}

DEVICE Scale SELF_scale(const unsigned* tile, const unsigned* table, unsigned row, unsigned run) {
    return Scale{tile_f16(tile, row), 0.0f};
}

DEVICE float4 SELF_quad(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad) {
    auto word = quad & 7u;
    auto digit = quad >> 3u;
    if (quad >= 60u) {
        word = 12u;
        digit = quad - 60u;
    } else if (quad >= 40u) {
        word = 8u + (quad & 3u);
        digit = (quad - 40u) >> 2u;
    }
    // 3^digit modulo 256, digit in 0..=4.
    auto power = unsigned((digit == 4u ? 81u : (0x1b090301u >> (8u * digit)) & 255u));
    auto words = SELF_word(tile, table, row, word);
    auto one = 1.0f;
    return float4{
        float(SELF_digit(field(words, 0u, 255u) * power)) - one,
        float(SELF_digit(field(words, 8u, 255u) * power)) - one,
        float(SELF_digit(field(words, 16u, 255u) * power)) - one,
        float(SELF_digit(field(words, 24u, 255u) * power)) - one,
    };
}

DEVICE void SELF_operands(const unsigned* tile, const unsigned* table, unsigned row, unsigned quad, unsigned, unsigned,
                          unsigned (&to)[SELF_PARTS][2]) {
    f16_of_codes(SELF_quad(tile, table, row, quad), to[0]);
}
