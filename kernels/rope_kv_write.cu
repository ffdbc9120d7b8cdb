// rope_kv_write: rotates the queries and keys of a step and encodes its keys and values into their cells of a paged cache.
// The first blocks of the grid rotate queries; the next write keys, which they rotate as they read them; the last write
// values. rope_kv_write: plain types. rope_kv_write_blocks: block types. Bound by memory.
#include "lib/grid.cuh"
#include "lib/kv_encode.cuh"
#include "lib/rotate.cuh"
#include "lib/rows.cuh"

struct Operands {
    const float* x;
    const float* v;
    const int* pos;
    const float2* table;
};

// Channel i of a key, rotated; 0 behind its end.
DEVICE float key_element(const Operands& o, const Params& p, unsigned row, unsigned i) {
    if (i >= p.head_dim) {
        return 0.0f;
    }
    unsigned token = row / p.n_kv_heads;
    const float* from =
        o.x + (p.x_off + size_t(token) * p.x_s0 + size_t(p.n_heads + row % p.n_kv_heads) * p.x_s1);
    if (i >= 2u * p.pairs) {
        return from[i];
    }
    // Pairs are neighbours, or half of the rotated channels apart.
    bool neighbours = p.first == 2u;
    unsigned pair = neighbours ? i / 2u : i % p.pairs;
    bool is_second = neighbours ? i % 2u == 1u : i >= p.pairs;
    float x0 = from[pair * p.first];
    float x1 = from[pair * p.first + p.second];
    float2 rotation = angle(o.table, p, position_of(o.pos, p, token, pair), pair);
    return is_second ? x0 * rotation.y + x1 * rotation.x : x0 * rotation.x - x1 * rotation.y;
}

// The same of a value, which does not turn.
DEVICE float value_element(const Operands& o, const Params& p, unsigned row, unsigned i) {
    return i < p.v_head_dim ? o.v[row_offset(row, p.v_n1, p.v_s0, p.v_s1, p.v_off) + i] : 0.0f;
}

DEVICE Rows rows_of_keys(const Params& p) {
    return {p.n_kv_heads, p.head_dim, p.k_items, p.k_n_items, p.n_cells, p.k_words, p.k_narrow, p.slots_off};
}

DEVICE Rows rows_of_values(const Params& p) {
    return {p.n_kv_heads, p.v_head_dim, p.v_items, p.v_n_items, p.n_cells, p.v_words, p.v_narrow, p.slots_off};
}

KERNEL rope_kv_write(const float* __restrict__ x, const float* __restrict__ v, const int* __restrict__ pos,
                     const float2* __restrict__ table, const int* __restrict__ slots, unsigned* __restrict__ k_cache,
                     unsigned* __restrict__ v_cache, float* __restrict__ y, const Params p) {
    Operands o = {x, v, pos, table};
    unsigned block = folded();
    unsigned index = block * THREADS + thread_id();
    if (block < p.q_blocks) {
        rotate(x, pos, table, y, p, index);
    } else if (block < p.q_blocks + p.k_blocks) {
        write_words(rows_of_keys(p), slots, k_cache, index - p.q_blocks * THREADS,
                    [&](unsigned row, unsigned i) { return key_element(o, p, row, i); });
    } else {
        write_words(rows_of_values(p), slots, v_cache, index - (p.q_blocks + p.k_blocks) * THREADS,
                    [&](unsigned row, unsigned i) { return value_element(o, p, row, i); });
    }
}

KERNEL rope_kv_write_blocks(const float* __restrict__ x, const float* __restrict__ v, const int* __restrict__ pos,
                            const float2* __restrict__ table, const int* __restrict__ slots,
                            unsigned* __restrict__ k_cache, unsigned* __restrict__ v_cache, float* __restrict__ y,
                            const Params p) {
    Operands o = {x, v, pos, table};
    unsigned block = folded();
    unsigned index = block * THREADS + thread_id();
    if (block < p.q_blocks) {
        rotate(x, pos, table, y, p, index);
    } else if (block < p.q_blocks + p.k_blocks) {
        write_blocks(rows_of_keys(p), slots, k_cache, index - p.q_blocks * THREADS,
                     [&](unsigned row, unsigned i) { return key_element(o, p, row, i); });
    } else {
        write_blocks(rows_of_values(p), slots, v_cache, index - (p.q_blocks + p.k_blocks) * THREADS,
                     [&](unsigned row, unsigned i) { return value_element(o, p, row, i); });
    }
}
