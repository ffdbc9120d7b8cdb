// attention: online softmax over the visible cells of a paged cache.
// A block owns 4 query rows, (token, head) pairs of one KV head, and every n_splits-th chunk of cells, so K and V are
// read once for 4 rows of a group. In turns: each thread scores cells for the 4 rows; the block updates the running
// maxima; each thread adds weighted values to its 4 channels of the 4 rows, and groups of threads share the cells. A
// tile may hold tokens of several sequences: it visits the cells of each in turn, and rows ignore what is not theirs.
// attention_tiles and attention_join: the same on tensor cores, at their heads.
// attention_merge: joins the parts of the splits in order; a thread owns 4 channels of a row.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/reduce.cuh"
#include "lib/split.cuh"

constexpr unsigned NONE = 0xffffffffu;
constexpr unsigned PAGE = 64u;
constexpr unsigned ROWS = 4u;
constexpr unsigned WARPS = (THREADS + 31u) / 32u;
// A text is launched by one entry, and the large ones return at once in the texts of others, so that compilers drop them.
constexpr bool IS_PORTABLE = Q_LEN >= 64u;
constexpr bool HAS_TILES = SHARED_BYTES > 0u;

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
    at = at < 0x3fffffff ? at : 0x3fffffff;
    return at < 0 ? -1 : at;
}

// The oldest cell that a token at a position sees.
DEVICE int oldest(const Params& p, int position) {
    int at = position - (int(p.window) - 1);
    return p.window > 0u && at > 0 ? at : 0;
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
    if (!IS_PORTABLE || index >= p.n_blocks) {
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
        first[r] = oldest(p, last[r]);
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
            float fades[ROWS];
            for (unsigned i = 0u; i < ROWS; i++) {
                new_top[i] = fmaxf(new_top[i], top[i]);
                float fade = top[i] == new_top[i] ? 1.0f : exp_neg(top[i] - new_top[i]);
                top[i] = new_top[i];
                fades[i] = fade;
            }
            for (unsigned c = thread; c < CHUNK; c += THREADS) {
                for (unsigned i = 0u; i < ROWS; i++) {
                    weights[c][i] = (visible[c] >> i) & 1u ? exp_neg(weights[c][i] - top[i]) : 0.0f;
                }
            }
            block_sync();

            // Values. A cell that a row does not see must not reach it, even as 0 * NaN. Each chunk has a sum of its own,
            // so that rounding does not grow with the number of cells.
            float chunk_total[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
            float4 chunk_sums[ROWS] = {};
            unsigned n_cells = !owns ? 0u : end - base < CHUNK ? end - base : CHUNK;
            for (unsigned c = group; c < n_cells; c += n_groups) {
                if (visible[c] == 0u) {
                    continue;
                }
                float4 value = v_quad(v_data, p, size_t(cells[c]) * p.v_words, quad);
                for (unsigned i = 0u; i < ROWS; i++) {
                    float w = weights[c][i];
                    if (w != 0.0f) {
                        chunk_total[i] += w;
                        float4 sum = chunk_sums[i];
                        chunk_sums[i] = {sum.x + w * value.x, sum.y + w * value.y, sum.z + w * value.z,
                                         sum.w + w * value.w};
                    }
                }
            }
            for (unsigned i = 0u; i < ROWS; i++) {
                float fade = fades[i];
                float4 sum = chunk_sums[i];
                total[i] = total[i] * fade + chunk_total[i];
                sums[i] = {sums[i].x * fade + sum.x, sums[i].y * fade + sum.y, sums[i].z * fade + sum.z,
                           sums[i].w * fade + sum.w};
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

// attention_tiles: the same on tensor cores.
// A block owns ROW_TILES tiles of 16 query rows, (token, head) pairs of one KV head, so that K and V are read once for
// all of them, and every n_splits-th chunk of CELLS cells. TEAM warps share a tile: each scores its part of a chunk's
// cells, then adds weighted values to its part of the channels. Raw rows of K and V come to shared memory by
// asynchronous copies, K of the next chunk while V of this one is multiplied, and are decoded into the operands of
// `mma`. Tiles of other sequences sit a chunk out.
//
// f32 is kept by splitting it into 16-bit numbers: queries and weights into two f16 where the cache is f16 (the query
// scaled by a power of two of its own, the weights by 2^14), else into three bf16; codes of block types without minima
// are exact in bf16, their scales are applied in f32 to scores and weights; other values are three bf16. Tensor cores truncate their sums, so products of one
// chunk are summed there and the chunks outside: a row's sum is two levels deep.
// A lane holds columns of its tile, so a cell that only some rows see gets the weight 0 in the others: what the engine
// has written is finite. Cells outside what the block sees are overwritten with zeros first.
//
// Channels are permuted so that lanes read quads of neighbours: lane (g, t) = (lane / 4, lane % 4) reads quads t and
// t + 4 of a block of 32 channels of cell g of K, and quad g of cells 2t, 2t + 1, 2t + 8, 2t + 9 of V.
constexpr unsigned TILE_ROWS = 16u * ROW_TILES;
constexpr unsigned STEPS = CELLS / 16u;
constexpr unsigned OWN_STEPS = (STEPS + TEAM - 1u) / TEAM;
constexpr unsigned Q_PARTS = k_BF16 ? 3u : 2u;
constexpr unsigned P_PARTS = v_BF16 ? 3u : 2u;
constexpr float WEIGHT_UNIT = v_BF16 ? 1.0f : 16384.0f;
// A step of weights is 8 words a lane: as they are, or as two parts of f16.
constexpr bool SPLIT_EARLY = !v_BF16;
// A warp alone keeps its weights in registers, which only unrolled loops can index.
constexpr unsigned UNROLLED_STEPS = TEAM > 1u ? 1u : STEPS;

// What lies in dynamic shared memory, in units of 16 bytes (`TilePlan::units` of the definition).
struct Areas {
    unsigned queries, keys, values, weights, tops, tokens, end;
};

DEVICE Areas areas(const Params& p) {
    unsigned k_blocks = (p.dk + 31u) / 32u;
    Areas a = {};
    a.keys = ROW_TILES * k_blocks * 2u * Q_PARTS * 32u;
    a.values = a.keys + CELLS * p.k_words / 4u;
    a.weights = a.values + CELLS * p.v_words / 4u;
    a.tops = a.weights + (TEAM > 1u ? ROW_TILES * STEPS * 64u : 0u);
    a.tokens = a.tops + ROW_TILES * TEAM * 4u;
    a.end = a.tokens + 3u * ROW_TILES * 4u;
    return a;
}

// Rows of whole lines of 128 bytes in 16-bit types are stored with quads exchanged, so that neither the lanes of K nor
// those of V meet in a bank.
DEVICE bool is_swizzled(bool scaled, unsigned planes, unsigned words) {
    return !scaled && planes == 1u && words % 32u == 0u;
}
DEVICE unsigned swizzle(unsigned cell) { return ((cell & 3u) ^ ((cell >> 2u) & 1u)) << 2u; }

// Starts copying CELLS rows of `words` words, which lie one behind the other.
DEVICE void copy_rows(uint4* to, const unsigned* from, unsigned words, bool swizzled) {
    unsigned first = thread_id();
    if (swizzled) {
        // The cell of a unit and the place in it, without a division for each.
        unsigned units = words / 4u;
        unsigned cell = first / units, place = first % units;
        for (unsigned unit = first; unit < CELLS * units; unit += THREADS) {
            copy_async<16>(to + (unit ^ (swizzle(cell) / 2u)), from + 4u * unit);
            cell += THREADS / units;
            place += THREADS % units;
            if (place >= units) {
                place -= units;
                cell++;
            }
        }
    } else {
        for (unsigned unit = first; unit < CELLS * words / 4u; unit += THREADS) {
            copy_async<16>(to + unit, from + 4u * unit);
        }
    }
    copy_commit();
}

// c += a b, the small products first; those below the last bits of f32 are left out.
template <bool BF16, unsigned PARTS, unsigned PLANES>
DEVICE void multiply(float (&c)[4], const unsigned (&a)[PARTS][4], const unsigned (&b)[PLANES][2]) {
#pragma unroll
    for (unsigned i = 0u; i < PARTS; i++) {
        unsigned sum = PARTS - 1u - i;
#pragma unroll
        for (unsigned plane = 0u; plane < PLANES; plane++) {
            if (plane <= sum) {
                if (BF16) {
                    mma_bf16(c, a[sum - plane], b[plane]);
                } else {
                    mma_f16(c, a[sum - plane], b[plane]);
                }
            }
        }
    }
}

// A quad of a query row; zeros where there is none.
DEVICE float4 query_quad(const float* row, const Params& p, unsigned quad) {
    if (row == nullptr || 4u * quad >= p.dk) {
        return {0.0f, 0.0f, 0.0f, 0.0f};
    }
    return {row[4u * quad], row[4u * quad + 1u], row[4u * quad + 2u], row[4u * quad + 3u]};
}

// Over the four lanes of a row.
DEVICE float row_max(float value) {
    value = fmaxf(value, shuffle_xor(value, 1u));
    return fmaxf(value, shuffle_xor(value, 2u));
}
DEVICE float row_sum(float value) {
    value += shuffle_xor(value, 1u);
    return value + shuffle_xor(value, 2u);
}

KERNEL attention_tiles(const float* __restrict__ q, const unsigned* __restrict__ k_data,
                       const unsigned* __restrict__ v_data, const int* __restrict__ page_table,
                       const int* __restrict__ seq_rows, const int* __restrict__ positions,
                       float4* __restrict__ records, const Params p) {
    unsigned index = folded();
    if (!HAS_TILES || index >= p.n_blocks) {
        return;
    }
    uint4* shared = dynamic_shared<uint4>();
    Areas area = areas(p);
    if (16u * area.end > SHARED_BYTES) {
        trap();
    }
    uint4* queries = shared + area.queries;
    uint4* keys = shared + area.keys;
    uint4* values = shared + area.values;
    float4* weights = reinterpret_cast<float4*>(shared + area.weights);
    float* tops = reinterpret_cast<float*>(shared + area.tops);
    int* token_seqs = reinterpret_cast<int*>(shared + area.tokens);
    int* token_firsts = token_seqs + TILE_ROWS;
    int* token_lasts = token_firsts + TILE_ROWS;

    unsigned thread = thread_id();
    unsigned lane = lane_id();
    unsigned member = warp_id() % TEAM;
    unsigned team = warp_id() / TEAM;
    unsigned g = lane / 4u;
    unsigned t = lane % 4u;
    unsigned split_index = index % p.n_splits;
    unsigned kv_head = index / p.n_splits % p.n_kv_heads;
    // Later rows see more: they start first.
    unsigned per_tile = p.n_splits * p.n_kv_heads;
    unsigned tile = p.n_blocks / per_tile - 1u - index / per_tile;
    unsigned first_token = TILE_ROWS * tile / p.group;
    bool k_swizzled = is_swizzled(k_SCALED, k_PLANES, p.k_words);
    bool v_swizzled = is_swizzled(v_SCALED, v_PLANES, p.v_words);
    unsigned k_blocks = (p.dk + 31u) / 32u;
    unsigned v_blocks = (p.v_quads + 7u) / 8u;

    // The block's tokens.
    for (unsigned i = thread; i < TILE_ROWS; i += THREADS) {
        unsigned token = first_token + i;
        bool here = token <= (TILE_ROWS * tile + TILE_ROWS - 1u) / p.group;
        int last = here ? position(positions, p, token) : -1;
        token_seqs[i] = here ? sequence(seq_rows, p, token) : -1;
        token_firsts[i] = oldest(p, last);
        token_lasts[i] = last;
    }
    block_sync();

    // The lane's rows.
    unsigned first_row = TILE_ROWS * tile + 16u * team + g;
    int seqs[2], first[2], last[2];
#pragma unroll
    for (unsigned i = 0u; i < 2u; i++) {
        unsigned at = (first_row + 8u * i) / p.group - first_token;
        seqs[i] = token_seqs[at];
        first[i] = token_firsts[at];
        last[i] = token_lasts[at];
    }

    // What undoes the scaling of the queries.
    float factors[2] = {1.0f, 1.0f};
    // The member's part of the queries as `mma` wants them.
    auto load_queries = [&]() {
        const float* q_rows[2];
        float scaling[2] = {1.0f, 1.0f};
#pragma unroll
        for (unsigned i = 0u; i < 2u; i++) {
            unsigned token = (first_row + 8u * i) / p.group;
            unsigned head = kv_head * p.group + (first_row + 8u * i) % p.group;
            bool exists = token < p.n_tokens;
            q_rows[i] = exists ? q + (p.q_off + size_t(token) * p.q_s0 + size_t(head) * p.q_s1) : nullptr;
            if (!k_BF16) {
                // The largest of the row to 2^14 .. 2^15.
                float most = 0.0f;
                for (unsigned quad = t; 4u * quad < p.dk; quad += 4u) {
                    float4 x = query_quad(q_rows[i], p, quad);
                    most = fmaxf(fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y))), fmaxf(fabsf(x.z), fabsf(x.w)));
                }
                unsigned exponent = bits_of(row_max(most)) >> 23u;
                scaling[i] = float_of((268u - (exponent > 27u ? exponent : 27u)) << 23u);
                factors[i] = float_of((254u << 23u) - bits_of(scaling[i]));
            }
        }
        for (unsigned block = member; block < k_blocks; block += TEAM) {
#pragma unroll
            for (unsigned half = 0u; half < 2u; half++) {
                unsigned a[Q_PARTS][4];
#pragma unroll
                for (unsigned i = 0u; i < 2u; i++) {
                    float4 x = query_quad(q_rows[i], p, 8u * block + 4u * half + t);
                    unsigned low[Q_PARTS], high[Q_PARTS];
                    split(low, x.x * scaling[i], x.y * scaling[i]);
                    split(high, x.z * scaling[i], x.w * scaling[i]);
#pragma unroll
                    for (unsigned part = 0u; part < Q_PARTS; part++) {
                        a[part][i] = low[part];
                        a[part][2u + i] = high[part];
                    }
                }
#pragma unroll
                for (unsigned part = 0u; part < Q_PARTS; part++) {
                    unsigned at = (((team * k_blocks + block) * 2u + half) * Q_PARTS + part) * 32u + lane;
                    queries[at] = {a[part][0], a[part][1], a[part][2], a[part][3]};
                }
            }
        }
    };

    float top[2] = {NEG_BIG, NEG_BIG};
    float total[2] = {0.0f, 0.0f};
    float sums[V_BLOCKS][4][4] = {};
    bool has_queries = false;

    // Each sequence in turn, at its first token.
    for (unsigned chosen = 0u; chosen < TILE_ROWS; chosen++) {
        int seq = token_seqs[chosen];
        if (seq < 0 || (chosen > 0u && token_seqs[chosen - 1u] == seq)) {
            continue;
        }
        bool before = false;
        int start = 0x7fffffff, stop = 0;
        for (unsigned i = lane; i < TILE_ROWS; i += 32u) {
            if (token_seqs[i] == seq) {
                before = before || i < chosen;
                start = token_firsts[i] < start ? token_firsts[i] : start;
                stop = token_lasts[i] + 1 > stop ? token_lasts[i] + 1 : stop;
            }
        }
#pragma unroll
        for (unsigned n = 16u; n > 0u; n /= 2u) {
            int other_start = shuffle_xor(start, n);
            int other_stop = shuffle_xor(stop, n);
            start = other_start < start ? other_start : start;
            stop = other_stop > stop ? other_stop : stop;
        }
        if (warp_ballot(before) != 0u) {
            continue;
        }
        unsigned end = unsigned(stop) < p.max_pages * PAGE ? unsigned(stop) : p.max_pages * PAGE;

        // Chunk c belongs to split c mod n_splits: boundaries do not depend on the rows of the block. A chunk lies in
        // one page.
        unsigned chunk = unsigned(start) / CELLS;
        chunk += (split_index + p.n_splits - chunk % p.n_splits) % p.n_splits;
        auto locate = [&](unsigned& at) {
            for (; at * CELLS < end; at += p.n_splits) {
                unsigned row = cell_row(page_table, p, unsigned(seq), kv_head, at * CELLS);
                if (row != NONE) {
                    return row;
                }
            }
            return NONE;
        };
        unsigned row = locate(chunk);
        if (row == NONE) {
            continue;
        }
        // The last chunk of the sequence before has been read.
        block_sync();
        copy_rows(keys, k_data + size_t(row) * p.k_words, p.k_words, k_swizzled);
        copy_rows(values, v_data + size_t(row) * p.v_words, p.v_words, v_swizzled);
        if (!has_queries) {
            load_queries();
            has_queries = true;
        }
        bool has_values = true;
        while (row != NONE) {
            unsigned base = chunk * CELLS;
            unsigned next = chunk + p.n_splits;
            unsigned next_row = locate(next);
            copy_wait<0>();
            // The keys are there, and nobody reads the values of the chunk before any more.
            block_sync();
            if (!has_values) {
                copy_rows(values, v_data + size_t(row) * p.v_words, p.v_words, v_swizzled);
            }
            has_values = false;

            bool mine = false;
#pragma unroll
            for (unsigned i = 0u; i < 2u; i++) {
                mine = mine || (seqs[i] == seq && last[i] >= int(base) && first[i] < int(base + CELLS));
            }
            mine = warp_ballot(mine) != 0u;

            // Scores of the member's cells.
            float scores[2u * OWN_STEPS][4] = {};
            float new_top[2] = {NEG_BIG, NEG_BIG};
            if (mine) {
                for (unsigned block = 0u; block < k_blocks; block++) {
                    unsigned a[2][Q_PARTS][4];
#pragma unroll
                    for (unsigned i = 0u; i < 2u * Q_PARTS; i++) {
                        uint4 part = queries[((team * k_blocks + block) * 2u * Q_PARTS + i) * 32u + lane];
                        a[i / Q_PARTS][i % Q_PARTS][0] = part.x;
                        a[i / Q_PARTS][i % Q_PARTS][1] = part.y;
                        a[i / Q_PARTS][i % Q_PARTS][2] = part.z;
                        a[i / Q_PARTS][i % Q_PARTS][3] = part.w;
                    }
#pragma unroll
                    for (unsigned n = 0u; n < 2u * OWN_STEPS; n++) {
                        unsigned first_cell = 16u * OWN_STEPS * member + 8u * n;
                        if (STEPS % TEAM != 0u && first_cell >= CELLS) {
                            break;
                        }
                        unsigned cell = first_cell + g;
                        const unsigned* key = reinterpret_cast<const unsigned*>(keys) + cell * p.k_words;
                        float products[4] = {};
#pragma unroll
                        for (unsigned half = 0u; half < 2u; half++) {
                            unsigned quad = 8u * block + 4u * half + t;
                            uint2 halves[k_PLANES] = {};
                            // Behind the last channel of a plain row lies the next row.
                            if (k_SCALED || 4u * quad < p.dk) {
                                k_halves(halves, key, p, k_swizzled ? quad ^ swizzle(cell) : quad);
                            }
                            unsigned b[k_PLANES][2];
#pragma unroll
                            for (unsigned plane = 0u; plane < k_PLANES; plane++) {
                                b[plane][0] = halves[plane].x;
                                b[plane][1] = halves[plane].y;
                            }
                            multiply<k_BF16, Q_PARTS, k_PLANES>(k_SCALED ? products : scores[n], a[half], b);
                        }
                        if (k_SCALED) {
#pragma unroll
                            for (unsigned e = 0u; e < 4u; e++) {
                                const unsigned* of = reinterpret_cast<const unsigned*>(keys) +
                                                     (first_cell + 2u * t + e % 2u) * p.k_words;
                                scores[n][e] += k_scale(of, block) * products[e];
                            }
                        }
                    }
                }
#pragma unroll
                for (unsigned n = 0u; n < 2u * OWN_STEPS; n++) {
#pragma unroll
                    for (unsigned e = 0u; e < 4u; e++) {
                        unsigned cell = 16u * OWN_STEPS * member + 8u * n + 2u * t + e % 2u;
                        unsigned i = e / 2u;
                        int j = int(base + cell);
                        bool visible = cell < CELLS && seqs[i] == seq && j <= last[i] && j >= first[i];
                        scores[n][e] = visible ? logit(p, scores[n][e] * factors[i]) : NEG_BIG;
                        new_top[i] = fmaxf(new_top[i], scores[n][e]);
                    }
                }
                new_top[0] = row_max(new_top[0]);
                new_top[1] = row_max(new_top[1]);
            }
            if (TEAM > 1u && t == 0u) {
                tops[(team * TEAM + member) * 16u + g] = new_top[0];
                tops[(team * TEAM + member) * 16u + 8u + g] = new_top[1];
            }
            // The maxima are there, and nobody reads the keys any more.
            block_sync();
            if (next_row != NONE) {
                copy_rows(keys, k_data + size_t(next_row) * p.k_words, p.k_words, k_swizzled);
            } else {
                copy_commit();
            }

            // Softmax, relative to the highest score so far.
            float fades[2] = {1.0f, 1.0f};
            if (mine) {
#pragma unroll
                for (unsigned i = 0u; i < 2u; i++) {
                    if (TEAM > 1u) {
#pragma unroll
                        for (unsigned other = 0u; other < TEAM; other++) {
                            new_top[i] = fmaxf(new_top[i], tops[(team * TEAM + other) * 16u + 8u * i + g]);
                        }
                    }
                    new_top[i] = fmaxf(new_top[i], top[i]);
                    fades[i] = top[i] == new_top[i] ? 1.0f : exp_neg(top[i] - new_top[i]);
                    top[i] = new_top[i];
                }
                float chunk_total[2] = {0.0f, 0.0f};
#pragma unroll
                for (unsigned n = 0u; n < 2u * OWN_STEPS; n++) {
#pragma unroll
                    for (unsigned e = 0u; e < 4u; e++) {
                        float score = scores[n][e];
                        float weight = score == NEG_BIG ? 0.0f : exp_neg(score - top[e / 2u]);
                        chunk_total[e / 2u] += weight;
                        scores[n][e] = WEIGHT_UNIT * weight;
                    }
                }
                total[0] = total[0] * fades[0] + chunk_total[0];
                total[1] = total[1] * fades[1] + chunk_total[1];
#pragma unroll
                for (unsigned step = 0u; step < OWN_STEPS; step++) {
                    if (SPLIT_EARLY) {
                        unsigned parts[4][2];
#pragma unroll
                        for (unsigned i = 0u; i < 4u; i++) {
                            float* pair = &scores[2u * step + i / 2u][2u * (i % 2u)];
                            split(parts[i], pair[0], pair[1]);
                        }
#pragma unroll
                        for (unsigned i = 0u; i < 4u; i++) {
                            scores[2u * step][i] = float_of(parts[i][0]);
                            scores[2u * step + 1u][i] = float_of(parts[i][1]);
                        }
                    }
                    unsigned of_chunk = OWN_STEPS * member + step;
                    if (TEAM > 1u && of_chunk < STEPS) {
#pragma unroll
                        for (unsigned n = 0u; n < 2u; n++) {
                            float* word = scores[2u * step + n];
                            weights[((team * STEPS + of_chunk) * 2u + n) * 32u + lane] = {word[0], word[1], word[2],
                                                                                         word[3]};
                        }
                    }
                }
            }
            copy_wait<1>();
            // The values and the weights are there.
            block_sync();
            unsigned live_first = unsigned(start) > base ? unsigned(start) - base : 0u;
            unsigned live_end = end - base < CELLS ? end - base : CELLS;
            if (live_first > 0u || live_end < CELLS) {
                unsigned* words = reinterpret_cast<unsigned*>(values);
                for (unsigned i = thread; i < CELLS * p.v_words; i += THREADS) {
                    unsigned cell = i / p.v_words;
                    if (cell < live_first || cell >= live_end) {
                        words[i] = 0u;
                    }
                }
                block_sync();
            }

            // Values, in blocks of 32 channels.
            if (mine) {
#pragma unroll
                for (unsigned own = 0u; own < V_BLOCKS; own++) {
                    unsigned block = V_BLOCKS * member + own;
                    if (block >= v_blocks) {
                        break;
                    }
                    float products[4][4] = {};
#pragma unroll UNROLLED_STEPS
                    for (unsigned step = 0u; step < STEPS; step++) {
                        float w[8];
#pragma unroll
                        for (unsigned n = 0u; n < 2u; n++) {
                            if (TEAM > 1u) {
                                float4 word = weights[((team * STEPS + step) * 2u + n) * 32u + lane];
                                w[4u * n] = word.x;
                                w[4u * n + 1u] = word.y;
                                w[4u * n + 2u] = word.z;
                                w[4u * n + 3u] = word.w;
                            } else {
#pragma unroll
                                for (unsigned e = 0u; e < 4u; e++) {
                                    w[4u * n + e] = scores[2u * (step % OWN_STEPS) + n][e];
                                }
                            }
                        }
                        uint2 halves[4][v_PLANES];
                        float scales[4];
#pragma unroll
                        for (unsigned i = 0u; i < 4u; i++) {
                            unsigned cell = 16u * step + 2u * t + i % 2u + 8u * (i / 2u);
                            const unsigned* value = reinterpret_cast<const unsigned*>(values) + cell * p.v_words;
                            unsigned quad = 8u * block + g;
                            v_halves(halves[i], value, p, v_swizzled ? quad ^ swizzle(cell) : quad);
                            scales[i] = v_scale(value, block);
                        }
                        // Weights times scales.
                        unsigned a[P_PARTS][4];
                        if (SPLIT_EARLY) {
#pragma unroll
                            for (unsigned i = 0u; i < 8u; i++) {
                                a[i / 4u][i % 4u] = bits_of(w[i]);
                            }
                        } else {
#pragma unroll
                            for (unsigned i = 0u; i < 4u; i++) {
                                // Pairs: rows g and g + 8 of cells 2t, 2t + 1; the same of cells 2t + 8, 2t + 9.
                                unsigned c = 2u * (i / 2u);
                                unsigned parts[P_PARTS];
                                split(parts, w[2u * i] * scales[c], w[2u * i + 1u] * scales[c + 1u]);
#pragma unroll
                                for (unsigned part = 0u; part < P_PARTS; part++) {
                                    a[part][i] = parts[part];
                                }
                            }
                        }
#pragma unroll
                        for (unsigned j = 0u; j < 4u; j++) {
                            // Channel j of the quads.
                            unsigned b[v_PLANES][2];
#pragma unroll
                            for (unsigned plane = 0u; plane < v_PLANES; plane++) {
#pragma unroll
                                for (unsigned i = 0u; i < 2u; i++) {
                                    uint2 even = halves[2u * i][plane];
                                    uint2 odd = halves[2u * i + 1u][plane];
                                    b[plane][i] = choose_bytes(j < 2u ? even.x : even.y, j < 2u ? odd.x : odd.y,
                                                               j % 2u == 0u ? 0x5410u : 0x7632u);
                                }
                            }
                            multiply<v_BF16, P_PARTS, v_PLANES>(products[j], a, b);
                        }
                    }
#pragma unroll
                    for (unsigned j = 0u; j < 4u; j++) {
#pragma unroll
                        for (unsigned e = 0u; e < 4u; e++) {
                            sums[own][j][e] = sums[own][j][e] * fades[e / 2u] + products[j][e];
                        }
                    }
                }
            }
            chunk = next;
            row = next_row;
        }
    }

    // Totals of the members, in order.
    total[0] = row_sum(total[0]);
    total[1] = row_sum(total[1]);
    if (TEAM > 1u) {
        block_sync();
        if (t == 0u) {
            tops[(team * TEAM + member) * 16u + g] = total[0];
            tops[(team * TEAM + member) * 16u + 8u + g] = total[1];
        }
        block_sync();
#pragma unroll
        for (unsigned i = 0u; i < 2u; i++) {
            total[i] = 0.0f;
            for (unsigned other = 0u; other < TEAM; other++) {
                total[i] += tops[(team * TEAM + other) * 16u + 8u * i + g];
            }
        }
    }
#pragma unroll
    for (unsigned i = 0u; i < 2u; i++) {
        unsigned token = (first_row + 8u * i) / p.group;
        unsigned head = kv_head * p.group + (first_row + 8u * i) % p.group;
        if (token >= p.n_tokens) {
            continue;
        }
        size_t at = ((size_t(token) * p.n_heads + head) * p.n_splits + split_index) * p.record;
        bool whole = p.n_splits == 1u;
        float inverse = (whole && total[i] != 0.0f ? 1.0f / total[i] : 1.0f) / WEIGHT_UNIT;
#pragma unroll
        for (unsigned own = 0u; own < V_BLOCKS; own++) {
#pragma unroll
            for (unsigned n = 0u; n < 2u; n++) {
                unsigned quad = 8u * (V_BLOCKS * member + own) + 2u * t + n;
                unsigned e = 2u * i + n;
                if (quad < p.v_quads) {
                    records[at + quad] = {sums[own][0][e] * inverse, sums[own][1][e] * inverse,
                                          sums[own][2][e] * inverse, sums[own][3][e] * inverse};
                }
            }
        }
        if (!whole && member == 0u && t == 0u) {
            records[at + p.v_quads] = {top[i], total[i], 0.0f, 0.0f};
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

// attention_join: the same for many splits, up to THREADS. A block owns a row: first a thread a split makes its share,
// then groups of threads share the splits.
KERNEL attention_join(const float4* __restrict__ parts, float4* __restrict__ merged, const Params p) {
    SHARED float warp_tops[WARPS];
    SHARED float shares[THREADS];
    SHARED float4 group_sums[THREADS];
    unsigned row = folded();
    if (row * p.v_quads >= p.n_merged) {
        return;
    }
    unsigned thread = thread_id();
    const float4* begin = parts + size_t(row) * p.n_splits * p.record;
    float4 part = {NEG_BIG, 0.0f, 0.0f, 0.0f};
    if (thread < p.n_splits) {
        part = begin[thread * p.record + p.v_quads];
    }
    float top = part.x;
    for (unsigned n = 16u; n > 0u; n /= 2u) {
        top = fmaxf(top, shuffle_xor(top, n));
    }
    if (lane_id() == 0u) {
        warp_tops[warp_id()] = top;
    }
    block_sync();
    for (unsigned warp = 0u; warp < WARPS; warp++) {
        top = fmaxf(top, warp_tops[warp]);
    }
    // A part that saw nothing has a sum of 0.
    float share = part.y != 0.0f ? exp_neg(part.x - top) : 0.0f;
    shares[thread] = share;
    float total = block_sum(share * part.y, thread);
    float divisor = total != 0.0f ? total : 1.0f;

    unsigned n_groups = p.v_quads < THREADS ? THREADS / p.v_quads : 1u;
    unsigned width = p.v_quads < THREADS ? p.v_quads : THREADS;
    unsigned group = thread / width;
    for (unsigned quad = thread % width; quad - thread % width < p.v_quads; quad += width) {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        if (quad < p.v_quads) {
#pragma unroll 8
            for (unsigned split = group; split < p.n_splits; split += n_groups) {
                float4 v = begin[split * p.record + quad];
                float weight = shares[split];
                sum = {sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z, sum.w + weight * v.w};
            }
        }
        block_sync();
        group_sums[thread] = sum;
        block_sync();
        if (group == 0u && quad < p.v_quads) {
            for (unsigned other = 1u; other < n_groups; other++) {
                float4 v = group_sums[other * width + thread];
                sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
            }
            merged[size_t(row) * p.v_quads + quad] = {sum.x / divisor, sum.y / divisor, sum.z / divisor,
                                                      sum.w / divisor};
        }
    }
}
