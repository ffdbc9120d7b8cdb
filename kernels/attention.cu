// attention: online softmax over the visible cells of a paged cache.
// A block owns 4 query rows, (token, head) pairs of one KV head, and every n_splits-th chunk of cells, so K and V are
// read once for 4 rows of a group. In turns: each thread scores cells for the 4 rows; the block updates the running
// maxima; each thread adds weighted values to its 4 channels of the 4 rows, and groups of threads share the cells. A
// tile may hold tokens of several sequences: it visits the cells of each in turn, and rows ignore what is not theirs.
// attention_merge: joins the parts of the splits in order; a thread owns 4 channels of a row.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"

constexpr unsigned NONE = 0xffffffffu;
constexpr unsigned PAGE = 64u;
constexpr unsigned ROWS = 4u;
constexpr unsigned WARPS = (THREADS + 31u) / 32u;

// Row of the page table, negative for padding.
DEVICE int sequence(const int* seq_rows, const Params& p, unsigned token) {
    if (token >= p.n_tokens) {
        return -1;
    }
    int row = seq_rows[p.seq_off + token];
    return row >= int(p.n_seq_rows) ? -1 : row;
}

DEVICE int position(const int* positions, const Params& p, unsigned token) {
    if (token >= p.n_tokens) {
        return -1;
    }
    int at = positions[p.pos_off + token];
    return at < 0x3fffffff ? at : 0x3fffffff;
}

// Where cell j of a sequence lies, in rows of the caches.
DEVICE unsigned cell_row(const int* page_table, const Params& p, unsigned seq, unsigned kv_head, unsigned j) {
    unsigned ordinal = j / PAGE;
    if (ordinal >= p.max_pages) {
        return NONE;
    }
    int page = page_table[p.table_off + size_t(seq) * p.max_pages + ordinal];
    if (page < 0 || unsigned(page) >= p.n_pages) {
        return NONE;
    }
    return (unsigned(page) * p.n_kv_heads + kv_head) * PAGE + j % PAGE;
}

DEVICE float logit(const Params& p, float product) {
    float s = product * p.scale;
    return p.softcap > 0.0f ? p.softcap * tanh_safe(s / p.softcap) : s;
}

// The maxima of the rows over the block. The caller has a barrier between two calls.
DEVICE void block_max(float (&top)[ROWS], unsigned thread) {
    SHARED float tops[WARPS][ROWS];
    for (unsigned r = 0u; r < ROWS; r++) {
        for (unsigned n = 16u; n > 0u; n /= 2u) {
            top[r] = fmaxf(top[r], shuffle_xor(top[r], n));
        }
        if (thread % 32u == 0u) {
            tops[thread / 32u][r] = top[r];
        }
    }
    block_sync();
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
KERNEL attention(const float* __restrict__ q, const unsigned* __restrict__ k_data,
                 const unsigned* __restrict__ v_data, const int* __restrict__ page_table,
                 const int* __restrict__ seq_rows, const int* __restrict__ positions, float4* __restrict__ records,
                 const Params p) {
    SHARED float queries[Q_LEN][ROWS]; // channel -> rows
    SHARED float weights[CHUNK][ROWS]; // cell -> rows
    SHARED unsigned cells[CHUNK];      // cell -> its row in the caches, or NONE
    SHARED unsigned visible[CHUNK];    // cell -> bits of the rows that see it

    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    unsigned thread = thread_id();
    unsigned split = index % p.n_splits;
    unsigned kv_head = (index / p.n_splits) % p.n_kv_heads;
    unsigned tile = index / (p.n_splits * p.n_kv_heads);
    unsigned tokens[ROWS], heads[ROWS];
    int seqs[ROWS], first[ROWS], last[ROWS];
    for (unsigned r = 0u; r < ROWS; r++) {
        unsigned row = ROWS * tile + r;
        tokens[r] = row / p.group;
        heads[r] = kv_head * p.group + row % p.group;
        seqs[r] = sequence(seq_rows, p, tokens[r]);
        last[r] = position(positions, p, tokens[r]);
        int oldest = last[r] - (int(p.window) - 1);
        first[r] = p.window > 0u && oldest > 0 ? oldest : 0;
        for (unsigned c = thread; c < p.dk; c += THREADS) {
            bool exists = tokens[r] < p.n_tokens;
            queries[c][r] = exists ? q[p.q_off + size_t(tokens[r]) * p.q_s0 + size_t(heads[r]) * p.q_s1 + c] : 0.0f;
        }
    }

    // What this thread owns of the values.
    unsigned quad = thread % p.v_quads;
    unsigned group = thread / p.v_quads;
    unsigned n_groups = THREADS / p.v_quads;
    bool owns = group < n_groups;

    float top[ROWS], total[ROWS];
    float4 sums[ROWS];
    for (unsigned r = 0u; r < ROWS; r++) {
        top[r] = NEG_BIG;
        total[r] = 0.0f;
        sums[r] = {0.0f, 0.0f, 0.0f, 0.0f};
    }
    for (unsigned r = 0u; r < ROWS; r++) {
        int seq = seqs[r];
        bool seen = false;
        int start = 0x7fffffff, stop = 0;
        for (unsigned i = 0u; i < ROWS; i++) {
            seen = seen || (i < r && seqs[i] == seq);
            if (seqs[i] == seq) {
                start = first[i] < start ? first[i] : start;
                stop = last[i] + 1 > stop ? last[i] + 1 : stop;
            }
        }
        if (seq < 0 || seen) {
            continue;
        }
        unsigned end = unsigned(stop) < p.max_pages * PAGE ? unsigned(stop) : p.max_pages * PAGE;
        // Chunk c belongs to split c mod n_splits: boundaries do not depend on the rows of the tile.
        unsigned chunk = unsigned(start) / CHUNK;
        chunk += (split + p.n_splits - chunk % p.n_splits) % p.n_splits;
        for (; chunk * CHUNK < end; chunk += p.n_splits) {
            unsigned base = chunk * CHUNK;
            // The queries are there, and nobody reads the chunk before any more.
            block_sync();
            float new_top[ROWS] = {NEG_BIG, NEG_BIG, NEG_BIG, NEG_BIG};
            for (unsigned c = thread; c < CHUNK; c += THREADS) {
                int j = int(base + c);
                unsigned bits = 0u;
                for (unsigned i = 0u; i < ROWS; i++) {
                    bits |= seqs[i] == seq && j <= last[i] && j >= first[i] ? 1u << i : 0u;
                }
                unsigned row = bits != 0u ? cell_row(page_table, p, unsigned(seq), kv_head, base + c) : NONE;
                bits = row != NONE ? bits : 0u;
                float products[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
                if (bits != 0u) {
                    for (unsigned k = 0u; k < p.dk; k += 4u) {
                        float4 key = k_quad(k_data, p, size_t(row) * p.k_words, k / 4u);
                        for (unsigned i = 0u; i < ROWS; i++) {
                            products[i] += key.x * queries[k][i] + key.y * queries[k + 1u][i] +
                                           key.z * queries[k + 2u][i] + key.w * queries[k + 3u][i];
                        }
                    }
                }
                for (unsigned i = 0u; i < ROWS; i++) {
                    float score = (bits >> i) & 1u ? logit(p, products[i]) : NEG_BIG;
                    weights[c][i] = score;
                    new_top[i] = fmaxf(new_top[i], score);
                }
                cells[c] = row;
                visible[c] = bits;
            }

            // Softmax, relative to the highest score so far.
            block_max(new_top, thread);
            for (unsigned i = 0u; i < ROWS; i++) {
                new_top[i] = fmaxf(new_top[i], top[i]);
                float fade = top[i] == new_top[i] ? 1.0f : exp_neg(top[i] - new_top[i]);
                top[i] = new_top[i];
                total[i] *= fade;
                sums[i] = {sums[i].x * fade, sums[i].y * fade, sums[i].z * fade, sums[i].w * fade};
            }
            for (unsigned c = thread; c < CHUNK; c += THREADS) {
                for (unsigned i = 0u; i < ROWS; i++) {
                    weights[c][i] = (visible[c] >> i) & 1u ? exp_neg(weights[c][i] - top[i]) : 0.0f;
                }
            }
            block_sync();

            // Values. A cell that a row does not see must not reach it, even as 0 * NaN.
            unsigned n_cells = !owns ? 0u : end - base < CHUNK ? end - base : CHUNK;
            for (unsigned c = group; c < n_cells; c += n_groups) {
                if (visible[c] == 0u) {
                    continue;
                }
                float4 value = v_quad(v_data, p, size_t(cells[c]) * p.v_words, quad);
                for (unsigned i = 0u; i < ROWS; i++) {
                    float w = weights[c][i];
                    if (w != 0.0f) {
                        total[i] += w;
                        sums[i] = {sums[i].x + w * value.x, sums[i].y + w * value.y, sums[i].z + w * value.z,
                                   sums[i].w + w * value.w};
                    }
                }
            }
        }
    }

    // The totals first, then the rows.
    float4 totals = group_sum4({total[0], total[1], total[2], total[3]}, thread, quad, n_groups, p.v_quads);
    float all[ROWS] = {totals.x, totals.y, totals.z, totals.w};
    for (unsigned r = 0u; r < ROWS; r++) {
        float4 sum = group_sum4(sums[r], thread, quad, n_groups, p.v_quads);
        if (group != 0u || tokens[r] >= p.n_tokens) {
            continue;
        }
        size_t at = ((size_t(tokens[r]) * p.n_heads + heads[r]) * p.n_splits + split) * p.record;
        if (p.n_splits == 1u) {
            float inverse = all[r] > 0.0f ? all[r] : 1.0f;
            float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
            float4 mean = {sum.x / inverse, sum.y / inverse, sum.z / inverse, sum.w / inverse};
            records[at + quad] = all[r] > 0.0f ? mean : none;
        } else {
            records[at + quad] = sum;
            if (quad == 0u) {
                records[at + p.v_quads] = {top[r], all[r], 0.0f, 0.0f};
            }
        }
    }
}

KERNEL attention_merge(const float4* __restrict__ parts, float4* __restrict__ merged, const Params p) {
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
