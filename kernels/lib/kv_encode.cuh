// Encodes rows of f32 into the cells of a paged cache. `element(row, i)` is element i of a row, or 0 behind its end.
// write_words: plain types, a thread makes one word. write_blocks: block types, a thread owns 4 elements, the 8 threads
// of a cache block agree on its scale by shuffles.
// BITS of a code; BF16: 16 bits mean bf16; RANGED: a block has a scale and a minimum.
#pragma once
#include "lib/f16_bits.cuh"

constexpr size_t NONE = ~size_t(0);
constexpr unsigned PAGE = 64u;
constexpr float F16_MAX = 65504.0f;

// The rows of a step: a token's heads follow each other.
struct Rows {
    unsigned n_heads;
    unsigned head_dim;
    // Threads of a row, and of all rows.
    unsigned items;
    unsigned n_items;
    unsigned n_cells;
    // Words of a cell, and those before its codes.
    unsigned row_words;
    unsigned narrow;
    unsigned slots_off;
};

// First word of the cell that row (token, head) goes to.
DEVICE size_t cell_word(const int* slots, const Rows& rows, unsigned row) {
    int slot = slots[rows.slots_off + row / rows.n_heads];
    if (slot < 0 || unsigned(slot) >= rows.n_cells) {
        return NONE;
    }
    unsigned cell = unsigned(slot);
    return ((size_t(cell / PAGE) * rows.n_heads + row % rows.n_heads) * PAGE + cell % PAGE) * rows.row_words;
}

template <class Element> DEVICE float finite(const Element& element, unsigned row, unsigned i) {
    return float_of(finite_bits(bits_of(element(row, i))));
}

DEVICE unsigned half_bits(float value) { return BF16 ? bf16_bits(value) : f16_bits(value); }

// A scale as stored: zero is +0.
DEVICE unsigned scale_bits(float value) {
    unsigned bits = f16_bits(value);
    return bits == 0x8000u ? 0u : bits;
}

// Writes what thread `index` of all rows' owns.
template <class Element>
DEVICE void write_words(const Rows& rows, const int* slots, unsigned* cache, unsigned index, const Element& element) {
    if (index >= rows.n_items) {
        return;
    }
    unsigned row = index / rows.items;
    unsigned word = index % rows.items;
    size_t cell = cell_word(slots, rows, row);
    if (cell == NONE) {
        return;
    }
    if (BITS == 32u) {
        cache[cell + word] = bits_of(finite(element, row, word));
    } else {
        unsigned first = half_bits(finite(element, row, 2u * word));
        unsigned second = half_bits(finite(element, row, 2u * word + 1u));
        cache[cell + word] = first | (second << 16u);
    }
}

// The element of largest magnitude, the first of equals.
DEVICE float larger(float a, float b) { return fabsf(b) > fabsf(a) ? b : a; }

// To the nearest integer, halves away from zero.
DEVICE int round_away(float v) {
    float magnitude = fabsf(v);
    float whole = truncf(magnitude);
    int code = int(magnitude - whole >= 0.5f ? whole + 1.0f : whole);
    return v < 0.0f ? -code : code;
}

// The same of block types, by all threads of a block together.
template <class Element>
DEVICE void write_blocks(const Rows& rows, const int* slots, unsigned* cache, unsigned index, const Element& element) {
    unsigned lane = thread_id() % 8u;
    unsigned first_lane = lane_id() - lane;
    unsigned row = index / rows.items;
    unsigned quad = index % rows.items;
    unsigned in_row = quad / 8u;
    unsigned n_blocks = (rows.head_dim + 31u) / 32u;
    size_t cell = index < rows.n_items ? cell_word(slots, rows, row) : NONE;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (cell != NONE) {
        for (unsigned e = 0u; e < 4u; e++) {
            v[e] = finite(element, row, 4u * quad + e);
        }
    }

    // The range of the block, or its element of largest magnitude: all lanes go through it in the same order.
    float low = fminf(fminf(v[0], v[1]), fminf(v[2], v[3]));
    float high = RANGED ? fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])) : larger(larger(larger(v[0], v[1]), v[2]), v[3]);
    float smallest = shuffle(low, first_lane);
    float largest = shuffle(high, first_lane);
    for (unsigned i = 1u; i < 8u; i++) {
        smallest = fminf(smallest, shuffle(low, first_lane + i));
        float other = shuffle(high, first_lane + i);
        largest = RANGED ? fmaxf(largest, other) : larger(largest, other);
    }

    float minimum = 0.0f;
    float d = 0.0f;
    if (RANGED) {
        minimum = fminf(fmaxf(smallest, -F16_MAX), F16_MAX);
        d = fmaxf(largest - minimum, 0.0f) / (BITS == 5u ? 31.0f : 15.0f);
    } else if (BITS == 8u) {
        d = fabsf(largest) / 127.0f;
    } else {
        d = largest * (BITS == 5u ? -0.0625f : -0.125f);
    }
    d = fminf(fmaxf(d, -F16_MAX), F16_MAX);
    unsigned d_bits = scale_bits(d);
    // A scale that is stored as 0 makes every code that of 0.
    float inverse = d_bits != 0u ? 1.0f / d : 0.0f;

    // Codes as the four bytes of a word.
    unsigned codes = 0u;
    float most = BITS == 5u ? 31.0f : 15.0f;
    float offset = RANGED ? 0.5f : 0.5f * most + 1.0f;
    for (unsigned e = 0u; e < 4u; e++) {
        unsigned code;
        if (BITS == 8u) {
            code = unsigned(round_away(fminf(fmaxf(v[e] * inverse, -127.0f), 127.0f))) & 255u;
        } else {
            code = unsigned(fminf(fmaxf((v[e] - minimum) * inverse + offset, 0.0f), most));
        }
        codes |= code << (8u * e);
    }

    // What a lane needs of its block's other lanes and of the next block, while all lanes are here.
    unsigned next_scale = shuffle(d_bits, (first_lane + 8u) % 32u);
    unsigned upper_codes = shuffle(codes, (lane_id() + 4u) % 32u);
    unsigned fifth = 0u;
    if (BITS == 5u) {
        for (unsigned i = 0u; i < 8u; i++) {
            unsigned bits = (shuffle(codes, first_lane + i) >> 4u) & 0x01010101u;
            fifth |= ((bits | (bits >> 7u) | (bits >> 14u) | (bits >> 21u)) & 15u) << (4u * i);
        }
    }
    if (cell == NONE || in_row >= n_blocks) {
        return;
    }

    // Scales without a minimum lie at the front of the row, two a word; the odd block may not exist. Even blocks are
    // those of a warp's first and third eight lanes, since a row is an even number of blocks.
    if (!RANGED && lane == 6u && in_row % 2u == 0u) {
        unsigned next = in_row + 1u < n_blocks ? next_scale : 0u;
        cache[cell + in_row / 2u] = d_bits | (next << 16u);
    }
    // Then the words of the block: scale and minimum, fifth bits, codes.
    constexpr unsigned HEAD_WORDS = (RANGED ? 1u : 0u) + (BITS == 5u ? 1u : 0u);
    constexpr unsigned CODE_WORDS = BITS == 8u ? 8u : 4u;
    unsigned* words = cache + cell + rows.narrow + in_row * (HEAD_WORDS + CODE_WORDS);
    if (BITS == 8u) {
        words[lane] = codes;
        return;
    }
    if (lane < 4u) {
        words[HEAD_WORDS + lane] = (codes & 0x0f0f0f0fu) | ((upper_codes & 0x0f0f0f0fu) << 4u);
    }
    if (BITS == 5u && lane == 4u) {
        words[HEAD_WORDS - 1u] = fifth;
    }
    if (RANGED && lane == 5u) {
        words[0] = d_bits | (scale_bits(minimum) << 16u);
    }
}
