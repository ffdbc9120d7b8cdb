// Rotates pairs of channels of heads by the angle of the token's position, with the parameters of `rope`.
// SECTIONS: 0 one position turns all pairs, 1 neighbouring pairs share an axis, 2 pairs alternate between axes.
#pragma once
#include "lib/device.cuh"

constexpr unsigned FINE = 256u;

// (cos, sin) of a pair at a position.
DEVICE float2 angle(const float2* table, const Params& p, int position, unsigned pair) {
    if (position < 0) {
        return {1.0f, 0.0f};
    }
    unsigned coarse_row = unsigned(position) / FINE;
    if (coarse_row >= p.n_coarse) {
        return {0.0f, 0.0f};
    }
    float2 fine = table[(unsigned(position) % FINE) * p.pairs + pair];
    float2 coarse = table[(FINE + coarse_row) * p.pairs + pair];
    return {coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y};
}

// The axis of a pair: t, h, w, e as 0 to 3.
DEVICE unsigned axis_of(const Params& p, unsigned pair) {
    unsigned at = pair % (p.section_t + p.section_h + p.section_w + p.section_e);
    if (SECTIONS == 2u) {
        unsigned turn = at % 3u;
        unsigned section = turn == 0u ? p.section_t : turn == 1u ? p.section_h : p.section_w;
        return at < 3u * section ? turn : 3u;
    }
    if (at < p.section_t) {
        return 0u;
    }
    if (at < p.section_t + p.section_h) {
        return 1u;
    }
    return at < p.section_t + p.section_h + p.section_w ? 2u : 3u;
}

// The position that turns a pair.
DEVICE int position_of(const int* pos, const Params& p, unsigned token, unsigned pair) {
    int position = pos[p.pos_off + token];
    if (SECTIONS == 0u) {
        return position;
    }
    unsigned axis = axis_of(p, pair);
    if (p.pos_axis > 0u) {
        return pos[p.pos_off + size_t(axis) * p.pos_axis + token];
    }
    // One position for all axes but the last, which text does not use.
    return axis == 3u && position > 0 ? 0 : position;
}

// Rotates what thread `index` owns: one pair, or one channel that is only copied, in heads_per_thread heads of a token.
DEVICE void rotate(const float* __restrict__ x, const int* __restrict__ pos, const float2* __restrict__ table,
                   float* __restrict__ y, const Params& p, unsigned index) {
    if (index >= p.n_items) {
        return;
    }
    unsigned item = index % p.items;
    unsigned part = index / p.items;
    unsigned parts = (p.n_heads + p.heads_per_thread - 1u) / p.heads_per_thread;
    unsigned token = part / parts;
    unsigned first_head = (part % parts) * p.heads_per_thread;
    unsigned end_head = first_head + p.heads_per_thread;
    end_head = end_head < p.n_heads ? end_head : p.n_heads;

    bool rotates = item < p.pairs;
    float2 rotation = {1.0f, 0.0f};
    unsigned a = p.pairs + item;
    unsigned b = a;
    if (rotates) {
        rotation = angle(table, p, position_of(pos, p, token, item), item);
        a = item * p.first;
        b = a + p.second;
    }
    for (unsigned head = first_head; head < end_head; head++) {
        const float* from = x + (p.x_off + size_t(token) * p.x_s0 + size_t(head) * p.x_s1);
        float* to = y + (size_t(token) * p.n_heads + head) * p.head_dim;
        float x0 = from[a];
        if (rotates) {
            float x1 = from[b];
            to[a] = x0 * rotation.x - x1 * rotation.y;
            to[b] = x0 * rotation.y + x1 * rotation.x;
        } else {
            to[a] = x0;
        }
    }
}
