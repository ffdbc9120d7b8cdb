// rope: rotates pairs of channels of each head by the angle of the token's position.
// A thread owns one pair, or one channel that is only copied, in heads_per_thread heads of a token. Bound by memory.
#include "lib/grid.cuh"

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

KERNEL rope(const float* __restrict__ x, const int* __restrict__ pos, const float2* __restrict__ table,
            float* __restrict__ y, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
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
        rotation = angle(table, p, pos[p.pos_off + token], item);
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
