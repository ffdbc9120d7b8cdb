// sparse_attention: online softmax over the selected cells of a paged cache.
// A block owns a token, a KV head, up to h_ROWS of its query heads, and every n_splits-th chunk of the token's list:
// members of the entries, then the tail. In turns: each thread scores cells for all rows, so that a cell is decoded
// once for them; the block updates the running maxima; each thread adds weighted values to its 4 channels of all rows,
// and groups of threads share the cells. Bound by memory at few heads, by arithmetic at many.
// sparse_attention_merge: joins the parts of the splits in order; a thread owns 4 channels of a row.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"

constexpr unsigned NONE = 0xffffffffu;
constexpr unsigned PAGE = 64u;
constexpr unsigned ROWS = h_ROWS;
constexpr unsigned WARPS = (THREADS + 31u) / 32u;

struct List {
    const int* entries;
    const int* pages; // of the token's sequence
    unsigned kv_head;
    unsigned end; // position + 1
};

// Where cell c of a token's list lies, in rows of the caches.
DEVICE unsigned cell_row(const List& list, const Params& p, unsigned c) {
    unsigned entry = c / p.ratio;
    unsigned whole = list.end / p.ratio;
    // Behind the entries comes the block that the token leaves incomplete.
    unsigned block = whole;
    if (entry < p.n_entries) {
        int e = list.entries[entry];
        unsigned limit = p.tail != 0u ? whole : (list.end + p.ratio - 1u) / p.ratio;
        if (e < 0 || unsigned(e) >= limit) {
            return NONE;
        }
        block = unsigned(e);
    }
    unsigned j = block * p.ratio + c % p.ratio;
    unsigned ordinal = j / PAGE;
    if (c >= p.n_cells || j >= list.end || ordinal >= p.max_pages) {
        return NONE;
    }
    int page = list.pages[ordinal];
    if (page < 0 || unsigned(page) >= p.n_pages) {
        return NONE;
    }
    return (unsigned(page) * p.n_kv_heads + list.kv_head) * PAGE + j % PAGE;
}

DEVICE float logit(const Params& p, float product) {
    float s = product * p.scale;
    return p.softcap > 0.0f ? p.softcap * tanh_safe(s / p.softcap) : s;
}

// The maxima of the rows over the block. The caller has a barrier between two calls.
DEVICE void block_max(float (&top)[ROWS], unsigned thread) {
    SHARED float tops[WARPS][ROWS];
#pragma unroll
    for (unsigned r = 0u; r < ROWS; r++) {
        for (unsigned n = 16u; n > 0u; n /= 2u) {
            top[r] = fmaxf(top[r], shuffle_xor(top[r], n));
        }
        if (thread % 32u == 0u) {
            tops[thread / 32u][r] = top[r];
        }
    }
    block_sync();
#pragma unroll
    for (unsigned r = 0u; r < ROWS; r++) {
        for (unsigned warp = 0u; warp < WARPS; warp++) {
            top[r] = fmaxf(top[r], tops[warp][r]);
        }
    }
}

// Sum over the groups of threads that share a quad of channels, in order.
DEVICE float4 group_sum4(float4 value, unsigned thread, unsigned quad, unsigned n_groups, unsigned v_quads) {
    SHARED float4 parts[THREADS];
    block_sync();
    parts[thread] = value;
    block_sync();
    float4 sum = parts[quad];
    for (unsigned g = 1u; g < n_groups; g++) {
        float4 part = parts[g * v_quads + quad];
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    return sum;
}

// `records`: a record a row and split: the channels, and with several splits (maximum, sum, 0, 0).
KERNEL sparse_attention(const float* __restrict__ q, const unsigned* __restrict__ k_data,
                        const unsigned* __restrict__ v_data, const int* __restrict__ page_table,
                        const int* __restrict__ seq_rows, const int* __restrict__ positions,
                        const int* __restrict__ selection, float4* __restrict__ records, const Params p) {
    SHARED float4 queries[Q_LEN][ROWS / 4u]; // channel -> rows
    SHARED float weights[CHUNK][ROWS];       // cell -> rows
    SHARED unsigned cells[CHUNK];            // cell -> its row in the caches, or NONE

    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    // Blocks with the same cells are neighbours.
    unsigned thread = thread_id();
    unsigned split = index % p.n_splits;
    unsigned tile = (index / p.n_splits) % p.n_tiles;
    unsigned kv_head = (index / (p.n_splits * p.n_tiles)) % p.n_kv_heads;
    unsigned token = index / (p.n_splits * p.n_tiles * p.n_kv_heads);
    unsigned first_head = kv_head * p.group + tile * ROWS;
    unsigned n_rows = p.group - tile * ROWS < ROWS ? p.group - tile * ROWS : ROWS;

    int seq = seq_rows[p.seq_off + token];
    int position = positions[p.pos_off + token];
    position = position < 0x3fffffff ? position : 0x3fffffff;
    bool exists = seq >= 0 && seq < int(p.n_seq_rows) && position >= 0;
    unsigned n_cells = exists ? p.n_cells : 0u;
    List list = {selection + p.sel_off + size_t(token) * p.sel_s0 + size_t(kv_head) * p.sel_s1,
                 page_table + p.table_off + (exists ? size_t(seq) * p.max_pages : 0u), kv_head,
                 exists ? unsigned(position) + 1u : 0u};

    const float* q_row = q + p.q_off + size_t(token) * p.q_s0 + size_t(first_head) * p.q_s1;
    for (unsigned r = 0u; r < ROWS; r++) {
        for (unsigned c = thread; c < p.dk; c += THREADS) {
            reinterpret_cast<float*>(queries[c])[r] = r < n_rows ? q_row[size_t(r) * p.q_s1 + c] : 0.0f;
        }
    }

    // What this thread owns of the values.
    unsigned quad = thread % p.v_quads;
    unsigned group = thread / p.v_quads;
    unsigned n_groups = THREADS / p.v_quads;
    bool owns = group < n_groups;

    float top[ROWS], total[ROWS];
    float4 sums[ROWS];
#pragma unroll
    for (unsigned r = 0u; r < ROWS; r++) {
        top[r] = NEG_BIG;
        total[r] = 0.0f;
        sums[r] = {0.0f, 0.0f, 0.0f, 0.0f};
    }
    for (unsigned base = split * CHUNK; base < n_cells; base += p.n_splits * CHUNK) {
        // The queries are there, and nobody reads the chunk before any more.
        block_sync();
        float new_top[ROWS];
#pragma unroll
        for (unsigned r = 0u; r < ROWS; r++) {
            new_top[r] = NEG_BIG;
        }
        for (unsigned c = thread; c < CHUNK; c += THREADS) {
            unsigned row = cell_row(list, p, base + c);
            float products[ROWS];
#pragma unroll
            for (unsigned r = 0u; r < ROWS; r++) {
                products[r] = 0.0f;
            }
            if (row != NONE) {
                for (unsigned k = 0u; k < p.dk; k += 4u) {
                    float4 key = k_quad(k_data, p, size_t(row) * p.k_words, k / 4u);
#pragma unroll
                    for (unsigned four = 0u; four < ROWS / 4u; four++) {
                        float4 q0 = queries[k][four], q1 = queries[k + 1u][four];
                        float4 q2 = queries[k + 2u][four], q3 = queries[k + 3u][four];
                        products[4u * four] += key.x * q0.x + key.y * q1.x + key.z * q2.x + key.w * q3.x;
                        products[4u * four + 1u] += key.x * q0.y + key.y * q1.y + key.z * q2.y + key.w * q3.y;
                        products[4u * four + 2u] += key.x * q0.z + key.y * q1.z + key.z * q2.z + key.w * q3.z;
                        products[4u * four + 3u] += key.x * q0.w + key.y * q1.w + key.z * q2.w + key.w * q3.w;
                    }
                }
            }
#pragma unroll
            for (unsigned r = 0u; r < ROWS; r++) {
                float score = row != NONE ? logit(p, products[r]) : NEG_BIG;
                weights[c][r] = score;
                new_top[r] = fmaxf(new_top[r], score);
            }
            cells[c] = row;
        }

        // Softmax, relative to the highest score so far.
        block_max(new_top, thread);
#pragma unroll
        for (unsigned r = 0u; r < ROWS; r++) {
            new_top[r] = fmaxf(new_top[r], top[r]);
            float fade = exp_neg(top[r] - new_top[r]);
            top[r] = new_top[r];
            total[r] *= fade;
            sums[r] = {sums[r].x * fade, sums[r].y * fade, sums[r].z * fade, sums[r].w * fade};
        }
        for (unsigned c = thread; c < CHUNK; c += THREADS) {
#pragma unroll
            for (unsigned r = 0u; r < ROWS; r++) {
                weights[c][r] = cells[c] != NONE ? exp_neg(weights[c][r] - top[r]) : 0.0f;
            }
        }
        block_sync();

        unsigned n_turn = !owns ? 0u : n_cells - base < CHUNK ? n_cells - base : CHUNK;
        for (unsigned c = group; c < n_turn; c += n_groups) {
            if (cells[c] == NONE) {
                continue;
            }
            float4 value = v_quad(v_data, p, size_t(cells[c]) * p.v_words, quad);
#pragma unroll
            for (unsigned r = 0u; r < ROWS; r++) {
                float w = weights[c][r];
                total[r] += w;
                sums[r] = {sums[r].x + w * value.x, sums[r].y + w * value.y, sums[r].z + w * value.z,
                           sums[r].w + w * value.w};
            }
        }
    }

    // The totals first, then the rows.
#pragma unroll
    for (unsigned r = 0u; r < ROWS; r += 4u) {
        float4 four = group_sum4({total[r], total[r + 1u], total[r + 2u], total[r + 3u]}, thread, quad, n_groups,
                                 p.v_quads);
        total[r] = four.x;
        total[r + 1u] = four.y;
        total[r + 2u] = four.z;
        total[r + 3u] = four.w;
    }
#pragma unroll
    for (unsigned r = 0u; r < ROWS; r++) {
        float4 sum = group_sum4(sums[r], thread, quad, n_groups, p.v_quads);
        if (group != 0u || r >= n_rows) {
            continue;
        }
        size_t at = ((size_t(token) * p.n_heads + first_head + r) * p.n_splits + split) * p.record;
        if (p.n_splits == 1u) {
            float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
            float divisor = total[r] > 0.0f ? total[r] : 1.0f;
            float4 mean = {sum.x / divisor, sum.y / divisor, sum.z / divisor, sum.w / divisor};
            records[at + quad] = total[r] > 0.0f ? mean : none;
        } else {
            records[at + quad] = sum;
            if (quad == 0u) {
                records[at + p.v_quads] = {top[r], total[r], 0.0f, 0.0f};
            }
        }
    }
}

KERNEL sparse_attention_merge(const float4* __restrict__ parts, float4* __restrict__ merged, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    if (index >= p.n_merged) {
        return;
    }
    unsigned row = index / p.v_quads;
    unsigned quad = index % p.v_quads;
    const float4* begin = parts + size_t(row) * p.n_splits * p.record;
    float top = NEG_BIG;
    for (unsigned split = 0u; split < p.n_splits; split++) {
        top = fmaxf(top, begin[split * p.record + p.v_quads].x);
    }
    float total = 0.0f;
    float4 sums = {0.0f, 0.0f, 0.0f, 0.0f};
    for (unsigned split = 0u; split < p.n_splits; split++) {
        float4 part = begin[split * p.record + p.v_quads];
        // A part that saw nothing has a sum of 0.
        if (part.y > 0.0f) {
            float weight = exp_neg(part.x - top);
            float4 v = begin[split * p.record + quad];
            total += weight * part.y;
            sums = {sums.x + weight * v.x, sums.y + weight * v.y, sums.z + weight * v.z, sums.w + weight * v.w};
        }
    }
    float divisor = total > 0.0f ? total : 1.0f;
    merged[size_t(row) * p.v_quads + quad] = {sums.x / divisor, sums.y / divisor, sums.z / divisor, sums.w / divisor};
}
