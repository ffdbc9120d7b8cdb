// index_score: how much each token wants each complete block of its own sequence.
// A block owns TOKENS tokens and 2 * THREADS neighbouring blocks of keys, two a thread. For four query heads of all its
// tokens at a time it has the queries in shared memory; a thread multiplies its keys with all of them. Tokens of
// several sequences are visited sequence by sequence. Bound by memory for few tokens, by arithmetic for many.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"

constexpr unsigned NONE = 0xffffffffu;
constexpr unsigned NEG_INF_BITS = 0xff800000u;
constexpr unsigned TOKENS = h_ROWS / 4u;

// Row of the page table, negative for padding.
DEVICE int sequence(const int* seq_rows, const Params& p, unsigned token) {
    if (token >= p.n_tokens) {
        return -1;
    }
    int row = seq_rows[p.seq_off + token];
    return row >= int(p.n_seq_rows) ? -1 : row;
}

// Complete blocks that a token sees.
DEVICE unsigned candidates(const int* positions, const Params& p, unsigned token) {
    if (token >= p.n_tokens) {
        return 0u;
    }
    int position = positions[p.pos_off + token];
    if (position < 0) {
        return 0u;
    }
    unsigned complete = (unsigned(position) + 1u) / p.ratio;
    return complete < p.n_blocks ? complete : p.n_blocks;
}

// Where block e of a sequence lies, in rows of the keys.
DEVICE unsigned key_row(const int* page_table, const Params& p, int seq, unsigned e) {
    unsigned ordinal = e / p.page_blocks;
    if (ordinal >= p.max_pages) {
        return NONE;
    }
    int page = page_table[p.table_off + size_t(unsigned(seq)) * p.max_pages + ordinal];
    if (page < 0 || unsigned(page) >= p.n_pages) {
        return NONE;
    }
    return unsigned(page) * p.page_blocks + e % p.page_blocks;
}

DEVICE float4 plus(float4 a, float s, float4 b) {
    return {a.x + s * b.x, a.y + s * b.y, a.z + s * b.z, a.w + s * b.w};
}

DEVICE float rectified(float4 w, float4 x) {
    return w.x * fmaxf(x.x, 0.0f) + w.y * fmaxf(x.y, 0.0f) + w.z * fmaxf(x.z, 0.0f) + w.w * fmaxf(x.w, 0.0f);
}

// `scores` are bits, as in the shader.
KERNEL index_score(const float* __restrict__ q, const unsigned* __restrict__ k_data, const int* __restrict__ page_table,
                   const int* __restrict__ seq_rows, const int* __restrict__ positions, const float* __restrict__ w,
                   unsigned* __restrict__ scores, const Params p) {
    SHARED float4 queries[TOKENS][Q_LEN]; // four heads of a channel
    unsigned index = folded();
    if (index >= p.n_groups) {
        return;
    }
    unsigned thread = thread_id();
    unsigned token = index / p.n_chunks * TOKENS;
    unsigned keys[2];
    keys[0] = (index % p.n_chunks) * 2u * THREADS + 2u * thread;
    keys[1] = keys[0] + 1u;
    int seqs[TOKENS];
    unsigned ends[TOKENS];
    float sums[TOKENS][2];
    bool sees[TOKENS][2];
#pragma unroll
    for (unsigned i = 0u; i < TOKENS; i++) {
        seqs[i] = sequence(seq_rows, p, token + i);
        ends[i] = candidates(positions, p, token + i);
#pragma unroll
        for (unsigned j = 0u; j < 2u; j++) {
            sums[i][j] = 0.0f;
            sees[i][j] = false;
        }
    }
    for (unsigned head = 0u; head < p.n_heads; head += 4u) {
        block_sync();
        float4 weights[TOKENS];
#pragma unroll
        for (unsigned i = 0u; i < TOKENS; i++) {
            bool exists = token + i < p.n_tokens;
            const float* q_row = q + p.q_off + (exists ? size_t(token + i) * p.q_s0 + size_t(head) * p.q_s1 : 0u);
            float four[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (unsigned h = 0u; h < 4u; h++) {
                if (exists && head + h < p.n_heads) {
                    four[h] = WEIGHTED ? w[p.w_off + size_t(token + i) * p.w_s0 + head + h] : 1.0f;
                }
            }
            weights[i] = {four[0], four[1], four[2], four[3]};
            for (unsigned c = thread; c < p.dim; c += THREADS) {
#pragma unroll
                for (unsigned h = 0u; h < 4u; h++) {
                    four[h] = exists && head + h < p.n_heads ? q_row[size_t(h) * p.q_s1 + c] : 0.0f;
                }
                queries[i][c] = {four[0], four[1], four[2], four[3]};
            }
        }
        block_sync();
        for (unsigned r = 0u; r < TOKENS; r++) {
            // Chosen without an index, so that what a thread owns stays in registers.
            int seq = -1;
#pragma unroll
            for (unsigned i = 0u; i < TOKENS; i++) {
                seq = i == r ? seqs[i] : seq;
            }
            bool seen = seq < 0;
            bool wants[2] = {false, false};
#pragma unroll
            for (unsigned i = 0u; i < TOKENS; i++) {
                seen = seen || (i < r && seqs[i] == seq);
#pragma unroll
                for (unsigned j = 0u; j < 2u; j++) {
                    wants[j] = wants[j] || (seqs[i] == seq && keys[j] < ends[i]);
                }
            }
            if (seen || !(wants[0] || wants[1])) {
                continue;
            }
            unsigned rows[2];
#pragma unroll
            for (unsigned j = 0u; j < 2u; j++) {
                rows[j] = wants[j] ? key_row(page_table, p, seq, keys[j]) : NONE;
            }
            if (rows[0] == NONE && rows[1] == NONE) {
                continue;
            }
            // Where only one of the keys is a candidate's, both stand for it.
            size_t first = size_t(rows[0] != NONE ? rows[0] : rows[1]) * p.k_words;
            size_t second = size_t(rows[1] != NONE ? rows[1] : rows[0]) * p.k_words;
            float4 products[TOKENS][2];
#pragma unroll
            for (unsigned i = 0u; i < TOKENS; i++) {
                products[i][0] = {0.0f, 0.0f, 0.0f, 0.0f};
                products[i][1] = {0.0f, 0.0f, 0.0f, 0.0f};
            }
            for (unsigned c = 0u; c < p.dim; c += 4u) {
                float4 key_a = k_quad(k_data, p, first, c / 4u);
                float4 key_b = k_quad(k_data, p, second, c / 4u);
#pragma unroll
                for (unsigned i = 0u; i < TOKENS; i++) {
                    float4 q0 = queries[i][c], q1 = queries[i][c + 1u];
                    float4 q2 = queries[i][c + 2u], q3 = queries[i][c + 3u];
                    products[i][0] = plus(plus(plus(plus(products[i][0], key_a.x, q0), key_a.y, q1), key_a.z, q2),
                                          key_a.w, q3);
                    products[i][1] = plus(plus(plus(plus(products[i][1], key_b.x, q0), key_b.y, q1), key_b.z, q2),
                                          key_b.w, q3);
                }
            }
#pragma unroll
            for (unsigned i = 0u; i < TOKENS; i++) {
#pragma unroll
                for (unsigned j = 0u; j < 2u; j++) {
                    if (seqs[i] == seq && keys[j] < ends[i] && rows[j] != NONE) {
                        sums[i][j] += rectified(weights[i], products[i][j]);
                        sees[i][j] = true;
                    }
                }
            }
        }
    }
#pragma unroll
    for (unsigned i = 0u; i < TOKENS; i++) {
#pragma unroll
        for (unsigned j = 0u; j < 2u; j++) {
            if (token + i < p.n_tokens && keys[j] < p.n_blocks) {
                unsigned bits = sees[i][j] ? bits_of(p.scale * sums[i][j]) : NEG_INF_BITS;
                scores[size_t(token + i) * p.n_blocks + keys[j]] = bits;
            }
        }
    }
}
