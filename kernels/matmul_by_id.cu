// matmul_by_id: products of each token with the matrices of the experts chosen for it. A pair of a token and one of
// its experts is an item; a row of a result is an item's.
// matmul_by_id_order: one block per expert (and one for ids that are none) lists its items in order and cuts them
// into slots of SLOT: three words each, the expert, the first place in the list, the number of items.
// matmul_by_id: a block owns 4 * QUADS rows of one expert for the items of a slot; without GROUPED an item is a slot,
// or BATCHED, item j of each token belongs to expert j, and SLOT tokens in order are a slot of each.
// A thread owns four rows and every KSPLIT-th quad of columns; with GLU four rows of either half. The order of a sum
// depends on KSPLIT alone. Bound by memory.
// matmul_by_id_tile: 64 rows by 64 items a block, decoded through shared memory; a thread owns 4 by 4 results.
//
// Rows of all experts lie one after the other, cut into windows anywhere (with GLU between experts); a launch sees
// one window and computes the rows in it.
#include "lib/activation.cuh"
#include "lib/grid.cuh"
#include "lib/rows.cuh"
#include "lib/tile.cuh"

DEVICE unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }
DEVICE unsigned most(unsigned a, unsigned b) { return a > b ? a : b; }

// What a block has to do: items `first .. first + n` of the list (BATCHED: of `n` tokens, from item `first` on), with
// the rows `row .. end` of the window.
struct Work {
    unsigned expert, first, n, row, end;
};

DEVICE Work work_of(const unsigned* route, const Params& p, unsigned slot) {
    Work work;
    if (GROUPED) {
        const unsigned* words = route + 3u * size_t(slot);
        work.expert = words[0];
        work.first = least(words[1], p.n_items);
        work.n = least(words[2], p.n_items - work.first);
    } else if (BATCHED) {
        unsigned token = slot % p.n_parts * SLOT;
        work.expert = slot / p.n_parts;
        work.first = token * p.n_experts + work.expert;
        work.n = least(SLOT, p.n_items / p.n_experts - token);
    } else {
        work.expert = route[p.ids_off + slot];
        work.first = slot;
        work.n = 1u;
    }
    if (work.expert >= p.n_experts) {
        // No expert: zeros, from the first window alone.
        work.expert = p.n_experts;
        work.row = 0u;
        work.end = p.row0 == 0u ? p.d_out : 0u;
        return work;
    }
    unsigned from_row = work.expert * p.d_out;
    work.row = most(from_row, p.row0) - p.row0;
    work.end = most(least(from_row + p.d_out, p.row0 + p.n_rows), p.row0) - p.row0;
    return work;
}

// Item `j` of a slot.
DEVICE unsigned item_of(const unsigned* route, const Params& p, const Work& work, unsigned j) {
    if (GROUPED) {
        return least(route[p.order_at + least(work.first + j, p.n_items - 1u)], p.n_items - 1u);
    }
    return BATCHED ? work.first + j * p.n_experts : work.first;
}

// Where the activations of an item start.
DEVICE size_t x_start(const Params& p, unsigned item) {
    return row_offset(item / p.x_per, p.x_n1, p.x_s0, p.x_s1, p.x_off);
}

// Four columns of a row of the bound window, zero behind its end.
DEVICE float4 weights(const unsigned* w_data, const unsigned* w_table, const Params& p, unsigned row, unsigned quad) {
    constexpr unsigned TILE_QUADS = 4u * w_RUNS;
    const unsigned* tile = w_data + size_t(row / 8u) * p.w_group * w_STEP + size_t(quad / TILE_QUADS) * w_TILE;
    unsigned in_tile = quad % TILE_QUADS;
    float4 v = w_quad(tile, w_table, row % 8u, in_tile);
    if (w_SCALED) {
        Scale scale = w_scale(tile, w_table, row % 8u, in_tile / 4u);
        float b = w_MIN ? scale.b : 0.0f;
        v = {v.x * scale.a + b, v.y * scale.a + b, v.z * scale.a + b, v.w * scale.a + b};
    }
    // Rows of plain types end inside a quad; what lies behind must not meet the zeros of x, even as 0 * NaN.
    unsigned left = p.n - 4u * quad;
    return {v.x, left > 1u ? v.y : 0.0f, left > 2u ? v.z : 0.0f, left > 3u ? v.w : 0.0f};
}

DEVICE float dot(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// The operands that finish a sum, and the results.
struct Ends {
    const float* scale;
    const float* bias;
    float* y;
};

// A sum of row `row` of the window, scaled and with its bias.
DEVICE float finished(const Ends& ends, const Params& p, float sum, unsigned expert, unsigned row) {
    unsigned global = p.row0 + row;
    if (p.n_scales > 0u) {
        bool second = p.n_scales == 2u && 2u * (global - expert * p.d_out) >= p.d_out;
        sum *= ends.scale[expert + (second ? p.n_experts : 0u)];
    }
    return p.has_bias == 1u ? sum + ends.bias[global] : sum;
}

// Stores the sum of a row if it belongs to `work`; with GLU together with that of its partner in the other half.
DEVICE void store(const Ends& ends, const Params& p, const Work& work, unsigned item, unsigned row, float sum,
                  float partner) {
    if (row < work.row || row >= (GLU ? work.row + p.d_y : work.end)) {
        return;
    }
    float out = finished(ends, p, sum, work.expert, row);
    if (GLU) {
        out = activation(out) * finished(ends, p, partner, work.expert, row + p.d_y);
    }
    ends.y[size_t(item) * p.d_y + (p.row0 + row - work.expert * p.d_out)] = out;
}

// A block's share of the rows of zeros of items without an expert.
DEVICE void store_zeros(const unsigned* route, const Params& p, const Work& work, unsigned row_block, float* y) {
    unsigned first = 4u * QUADS * row_block;
    unsigned end = work.end == 0u ? 0u : least(first + 4u * QUADS, p.d_y);
    for (unsigned j = 0u; j < work.n; j++) {
        float* row = y + size_t(item_of(route, p, work, j)) * p.d_y;
        for (unsigned i = first + thread_id(); i < end; i += THREADS) {
            row[i] = 0.0f;
        }
    }
}

// The sum of the KSPLIT threads that own the same rows, for the first QUADS threads.
DEVICE float4 block_total(const float (&sum)[4], unsigned thread) {
    SHARED float4 sums[THREADS];
    block_sync();
    sums[thread] = {sum[0], sum[1], sum[2], sum[3]};
    for (unsigned n = KSPLIT / 2u; n > 0u; n /= 2u) {
        block_sync();
        if (thread < n * QUADS) {
            float4 a = sums[thread], b = sums[thread + n * QUADS];
            sums[thread] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
        }
    }
    // The first QUADS threads made the last sums themselves.
    return sums[thread];
}

KERNEL matmul_by_id(const float* __restrict__ x_data, const unsigned* __restrict__ w_data,
                    const unsigned* __restrict__ w_table, const unsigned* __restrict__ route,
                    const float* __restrict__ scale, const float* __restrict__ bias, float* __restrict__ y,
                    const Params p) {
    constexpr unsigned HALVES = GLU ? 2u : 1u;
    unsigned index = folded();
    unsigned row_block = index / p.n_slots;
    // The slots of tiles are theirs alone, and too many sums for a thread.
    if (SLOT >= 64u || row_block >= p.n_row_blocks) {
        return;
    }
    Work work = work_of(route, p, index % p.n_slots);
    if (work.expert >= p.n_experts) {
        store_zeros(route, p, work, row_block, y);
        return;
    }
    unsigned first_quad = work.row / 4u + row_block * QUADS;
    if (work.n == 0u || 4u * first_quad >= work.end) {
        return;
    }
    unsigned thread = thread_id();
    unsigned row = 4u * (first_quad + thread % QUADS);
    unsigned item[SLOT];
    for (unsigned t = 0u; t < SLOT; t++) {
        item[t] = item_of(route, p, work, least(t, work.n - 1u));
    }
    float sum[SLOT][HALVES][4] = {};
    for (unsigned quad = thread / QUADS; 4u * quad < p.n; quad += KSPLIT) {
        float4 w[HALVES][4];
#pragma unroll
        for (unsigned half = 0u; half < HALVES; half++) {
#pragma unroll
            for (unsigned r = 0u; r < 4u; r++) {
                // Rows behind the end repeat the last and are not stored.
                unsigned own = least(row + half * p.d_y + r, work.end - 1u);
                w[half][r] = weights(w_data, w_table, p, own, quad);
            }
        }
#pragma unroll
        for (unsigned t = 0u; t < SLOT; t++) {
            float4 x = v_quad(x_data, x_start(p, item[t]), 4u * quad, p.n);
#pragma unroll
            for (unsigned half = 0u; half < HALVES; half++) {
#pragma unroll
                for (unsigned r = 0u; r < 4u; r++) {
                    sum[t][half][r] = dot(w[half][r], x, sum[t][half][r]);
                }
            }
        }
    }
    Ends ends{scale, bias, y};
#pragma unroll
    for (unsigned t = 0u; t < SLOT; t++) {
        float4 total = block_total(sum[t][0], thread);
        float4 partner = GLU ? block_total(sum[t][HALVES - 1u], thread) : total;
        if (thread < QUADS && t < work.n) {
            store(ends, p, work, item[t], row, total.x, partner.x);
            store(ends, p, work, item[t], row + 1u, total.y, partner.y);
            store(ends, p, work, item[t], row + 2u, total.z, partner.z);
            store(ends, p, work, item[t], row + 3u, total.w, partner.w);
        }
    }
}

KERNEL matmul_by_id_tile(const float* __restrict__ x_data, const unsigned* __restrict__ w_data,
                         const unsigned* __restrict__ w_table, const unsigned* __restrict__ route,
                         const float* __restrict__ scale, const float* __restrict__ bias, float* __restrict__ y,
                         const Params p) {
    // Rows of a block's results; with GLU the other half of the 64 rows are their partners.
    constexpr unsigned TILE = 64u, COLUMNS = 32u, OWN = 4u * QUADS;
    SHARED float w_part[COLUMNS][TILE + 1u]; // column -> rows of w
    SHARED float x_part[COLUMNS][TILE + 1u]; // column -> items
    unsigned index = folded();
    unsigned row_block = index / p.n_slots;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    Work work = work_of(route, p, index % p.n_slots);
    if (work.expert >= p.n_experts) {
        store_zeros(route, p, work, row_block, y);
        return;
    }
    unsigned first_row = 4u * (work.row / 4u) + row_block * OWN;
    if (work.n == 0u || first_row >= work.end) {
        return;
    }
    unsigned thread = thread_id();
    // A thread's rows are a quarter of the tile apart, so rows and partners are in one thread.
    unsigned own_row = thread % 16u, own_item = thread / 16u;
    float sum[4][4] = {};
    for (unsigned column = 0u; column < p.n; column += COLUMNS) {
        for (unsigned job = thread; job < TILE * COLUMNS / 4u; job += THREADS) {
            unsigned at = job % TILE, quad = job / TILE;
            float4 w = {0.0f, 0.0f, 0.0f, 0.0f};
            float4 x = w;
            if (column + 4u * quad < p.n) {
                unsigned row = first_row + at % OWN + at / OWN * p.d_y;
                w = weights(w_data, w_table, p, least(row, work.end - 1u), column / 4u + quad);
                unsigned item = item_of(route, p, work, least(at, work.n - 1u));
                x = x_quad(x_data, x_start(p, item), column + 4u * quad, p.n);
            }
            float w_of[4] = {w.x, w.y, w.z, w.w}, x_of[4] = {x.x, x.y, x.z, x.w};
            for (unsigned e = 0u; e < 4u; e++) {
                w_part[4u * quad + e][at] = w_of[e];
                x_part[4u * quad + e][at] = x_of[e];
            }
        }
        block_sync();
        for (unsigned c = 0u; c < COLUMNS; c++) {
            for (unsigned t = 0u; t < 4u; t++) {
                for (unsigned r = 0u; r < 4u; r++) {
                    sum[t][r] = fmaf(w_part[c][own_row + 16u * r], x_part[c][own_item + 16u * t], sum[t][r]);
                }
            }
        }
        block_sync();
    }
    Ends ends{scale, bias, y};
    for (unsigned t = 0u; t < 4u; t++) {
        if (own_item + 16u * t >= work.n) {
            continue;
        }
        unsigned item = item_of(route, p, work, own_item + 16u * t);
        for (unsigned r = 0u; r < OWN / 16u; r++) {
            unsigned row = first_row + own_row + 16u * r;
            store(ends, p, work, item, row, sum[t][r], sum[t][(r + OWN / 16u) % 4u]);
        }
    }
}

KERNEL matmul_by_id_order(const unsigned* __restrict__ ids, unsigned* __restrict__ slots, const Params p) {
    SHARED uint2 counts[THREADS];
    unsigned expert = folded();
    if (expert > p.n_experts) {
        return;
    }
    unsigned thread = thread_id();
    // Each thread owns neighbours, so that threads in order are items in order.
    unsigned share = (p.n_items + THREADS - 1u) / THREADS;
    unsigned from_item = least(thread * share, p.n_items);
    unsigned end_item = least(from_item + share, p.n_items);
    // Items of lower experts, and of this one.
    uint2 own = {0u, 0u};
    for (unsigned i = from_item; i < end_item; i++) {
        unsigned id = least(ids[p.ids_off + i], p.n_experts);
        own.x += id < expert ? 1u : 0u;
        own.y += id == expert ? 1u : 0u;
    }
    counts[thread] = own;
    for (unsigned n = 1u; n < THREADS; n *= 2u) {
        block_sync();
        uint2 before = {0u, 0u};
        if (thread >= n) {
            before = counts[thread - n];
        }
        block_sync();
        counts[thread] = {counts[thread].x + before.x, counts[thread].y + before.y};
    }
    block_sync();
    unsigned first = counts[THREADS - 1u].x;
    unsigned n_own = counts[THREADS - 1u].y;
    unsigned place = first + counts[thread].y - own.y;
    for (unsigned i = from_item; i < end_item; i++) {
        if (least(ids[p.ids_off + i], p.n_experts) == expert) {
            slots[p.order_at + place] = i;
            place++;
        }
    }
    // No other expert has a slot of these numbers, and together experts have all.
    unsigned first_slot = first / SLOT + expert;
    unsigned end_slot = (first + n_own) / SLOT + expert + 1u;
    for (unsigned s = first_slot + thread; s < end_slot; s += THREADS) {
        unsigned done = (s - first_slot) * SLOT;
        slots[3u * s] = expert;
        slots[3u * s + 1u] = first + done;
        slots[3u * s + 2u] = least(SLOT, most(n_own, done) - done);
    }
}
