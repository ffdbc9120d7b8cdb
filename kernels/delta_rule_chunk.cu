// delta_rule_chunk: the gated delta rule of runs of more rows than are recorded, CHUNK tokens at a time.
// delta_rule_chunk_prepare: a block owns a chunk of a head, a thread 4 x 4 elements of its matrices: the inverse T of
// the triangular system, the masked products P of queries and keys, the factors of the tokens. 14 KiB shared.
// delta_rule_chunk: a block owns COLUMNS output channels of a head of a run and goes through its chunks with their
// columns of the state in shared memory. A thread has 4 tokens by 4 channels of the products of keys or queries and
// state, then 4 channels of some rows of the state. Keys and queries lie there SLICE channels at a time. Shared:
// 4 (PADDED + CHUNK) COLUMNS + 16 (18 SLICE + CHUNK) bytes.
// delta_rule_chunk_short: runs of at most as many rows as are recorded, token by token (lib/delta_rule).
// Bound by arithmetic.
#include "lib/delta_rule.cuh"
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/runs.cuh"

constexpr unsigned GROUPS = CHUNK / 4u;  // of 4 tokens
constexpr unsigned QUADS = COLUMNS / 4u; // of 4 channels
// Of each token and head: a row of T, a row of P, (decay from the chunk's start, to its end, scales of key and query).
constexpr unsigned PREPARED = 2u * GROUPS + 1u;
constexpr unsigned PREPARE_SLICE = 16u;
// Slices lie channel by channel, the groups of keys, then those of queries. One more keeps neighbouring channels apart.
constexpr unsigned STRIDE = 2u * GROUPS + 1u;
// What the state takes up needs keys alone: twice as many channels fit.
constexpr bool WHOLE = SLICE == PADDED;
constexpr unsigned KEY_STRIDE = WHOLE ? STRIDE : GROUPS + 1u;
constexpr unsigned KEY_SLICE = WHOLE ? SLICE : 2u * SLICE;

// Rows of a run that follow each other in one chunk.
struct Chunk {
    unsigned first; // in the step
    unsigned n_rows;
    unsigned before; // rows of the run before it
};

DEVICE unsigned n_chunks(unsigned n_rows) { return (n_rows + CHUNK - 1u) / CHUNK; }

// Chunks of a long run before its recorded part, which begins a chunk.
DEVICE unsigned n_stored_chunks(const Params& p, Run run) { return n_chunks(run.n_rows - p.n_recorded); }

DEVICE Chunk chunk_of(const Params& p, Run run, unsigned index) {
    unsigned stored = run.n_rows - p.n_recorded;
    unsigned n_stored = n_chunks(stored);
    bool recorded = index >= n_stored;
    unsigned before = recorded ? stored + (index - n_stored) * CHUNK : index * CHUNK;
    unsigned left = (recorded ? run.n_rows : stored) - before;
    return {run.first + before, left < CHUNK ? left : CHUNK, before};
}

// The key head of a value head.
DEVICE unsigned key_head_of(const Params& p, unsigned head) {
    return TILED ? head % p.n_k_heads : head / (p.n_v_heads / p.n_k_heads);
}

DEVICE void add_scaled(float4& sum, float factor, float4 x) {
    sum.x += factor * x.x;
    sum.y += factor * x.y;
    sum.z += factor * x.z;
    sum.w += factor * x.w;
}

DEVICE float4 scaled(float factor, float4 x) { return {factor * x.x, factor * x.y, factor * x.z, factor * x.w}; }

DEVICE void scale_each(float4& x, float a, float b, float c, float d) { x = {x.x * a, x.y * b, x.z * c, x.w * d}; }

// Adds a row of a matrix, 4 columns of it, times 4 rows.
DEVICE void add_product(float4& sum, float4 row, const float4 (&x)[4]) {
    add_scaled(sum, row.x, x[0]);
    add_scaled(sum, row.y, x[1]);
    add_scaled(sum, row.z, x[2]);
    add_scaled(sum, row.w, x[3]);
}

// The first n of 4 values, STEP apart; zeros behind them.
DEVICE float4 load_some(const float* at, size_t step, unsigned n) {
    return {n > 0u ? at[0] : 0.0f, n > 1u ? at[step] : 0.0f, n > 2u ? at[2u * step] : 0.0f,
            n > 3u ? at[3u * step] : 0.0f};
}

DEVICE void store_some(float* at, size_t step, unsigned n, float4 x) {
    if (n > 0u) {
        at[0] = x.x;
    }
    if (n > 1u) {
        at[step] = x.y;
    }
    if (n > 2u) {
        at[2u * step] = x.z;
    }
    if (n > 3u) {
        at[3u * step] = x.w;
    }
}

// Channel `i` of the keys (groups below GROUPS) or queries of 4 tokens; zeros where there are none.
DEVICE float4 four_tokens(const float* qkv, const Params& p, Chunk chunk, unsigned key_head, unsigned group, unsigned i) {
    unsigned row = group % GROUPS * 4u;
    if (i >= p.k_dim || row >= chunk.n_rows) {
        return {0.0f, 0.0f, 0.0f, 0.0f};
    }
    unsigned head = group < GROUPS ? p.n_k_heads + key_head : key_head;
    const float* at = qkv + p.qkv_off + size_t(chunk.first + row) * p.qkv_s + head * p.k_dim + i;
    return load_some(at, p.qkv_s, chunk.n_rows - row);
}

// One over the length, 0 for length 0.
DEVICE float over_length(const Params& p, float squares) {
    squares += p.l2_eps;
    return squares > 0.0f ? 1.0f / sqrtf(squares) : 0.0f;
}

DEVICE float4* prepared_of(float4* prepared, const Params& p, unsigned row, unsigned head) {
    return prepared + (size_t(row) * p.n_v_heads + head) * PREPARED;
}

KERNEL delta_rule_chunk_prepare(const float* __restrict__ qkv, const float* __restrict__ gates,
                                const int* __restrict__ runs, const int* __restrict__ commits,
                                float* __restrict__ state, float* __restrict__ record, float* __restrict__ y,
                                float4* __restrict__ prepared, const Params p) {
    SHARED float4 parts[PREPARE_SLICE * STRIDE];
    SHARED float system[CHUNK][CHUNK + 1u]; // decays, then A
    SHARED float inverse[CHUNK][CHUNK];
    // Of each token.
    SHARED float gs[CHUNK], betas[CHUNK], k_scales[CHUNK], q_scales[CHUNK];
    SHARED float decays_in[CHUNK];  // from the chunk's start
    SHARED float decays_out[CHUNK]; // to its end
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    unsigned thread = thread_id();
    unsigned head = index % p.n_v_heads;
    unsigned chunk_index = index / p.n_v_heads;
    unsigned run_index = 0u;
    Run run = {0u, 0u, 0u, 0u};
    for (; run_index < p.n_runs; run_index++) {
        run = run_at(runs, p, run_index);
        if (run.n_rows > p.longest) {
            unsigned n = n_stored_chunks(p, run) + n_chunks(p.n_recorded);
            if (chunk_index < n) {
                break;
            }
            chunk_index -= n;
        }
    }
    if (run_index >= p.n_runs) {
        return;
    }
    Chunk chunk = chunk_of(p, run, chunk_index);
    unsigned key_head = key_head_of(p, head);

    // <k_i, k_j> and <q_i, k_j> of tokens i of group `rows` and j of group `others`.
    unsigned rows = thread / GROUPS;
    unsigned others = thread % GROUPS;
    float4 kk[4] = {}, qk[4] = {};
    float4 qq = {};
    for (unsigned base = 0u; base < p.k_dim; base += PREPARE_SLICE) {
        block_sync();
        for (unsigned item = thread; item < PREPARE_SLICE * 2u * GROUPS; item += THREADS) {
            unsigned i = item % PREPARE_SLICE;
            unsigned group = item / PREPARE_SLICE;
            parts[i * STRIDE + group] = four_tokens(qkv, p, chunk, key_head, group, base + i);
        }
        block_sync();
#pragma unroll 4
        for (unsigned i = 0u; i < PREPARE_SLICE; i++) {
            float4 k = parts[i * STRIDE + rows];
            float4 q = parts[i * STRIDE + GROUPS + rows];
            float4 other = parts[i * STRIDE + others];
            add_scaled(kk[0], k.x, other);
            add_scaled(kk[1], k.y, other);
            add_scaled(kk[2], k.z, other);
            add_scaled(kk[3], k.w, other);
            add_scaled(qk[0], q.x, other);
            add_scaled(qk[1], q.y, other);
            add_scaled(qk[2], q.z, other);
            add_scaled(qk[3], q.w, other);
            qq.x += q.x * q.x;
            qq.y += q.y * q.y;
            qq.z += q.z * q.z;
            qq.w += q.w * q.w;
        }
    }
    if (rows == others) {
        float k_squares[4] = {kk[0].x, kk[1].y, kk[2].z, kk[3].w};
        float q_squares[4] = {qq.x, qq.y, qq.z, qq.w};
#pragma unroll
        for (unsigned r = 0u; r < 4u; r++) {
            k_scales[4u * rows + r] = NORMED ? over_length(p, k_squares[r]) : 1.0f;
            q_scales[4u * rows + r] = p.scale * (NORMED ? over_length(p, q_squares[r]) : 1.0f);
        }
    }
    if (thread < CHUNK) {
        bool exists = thread < chunk.n_rows;
        const float* gate = gates + p.gates_off + size_t(chunk.first + thread) * 2u * p.n_v_heads + head;
        gs[thread] = exists ? fminf(gate[0], 0.0f) : 0.0f;
        betas[thread] = exists ? gate[p.n_v_heads] : 0.0f;
    }
    block_sync();

    // Each logarithm is a sum of its own: a difference of sums from the start would lose what cancels.
    if (thread < CHUNK) {
        unsigned j = thread;
        float sum = 0.0f;
        system[j][j] = 1.0f;
        for (unsigned i = j + 1u; i < CHUNK; i++) {
            sum += gs[i];
            system[i][j] = exp_neg(sum);
        }
        decays_out[j] = exp_neg(sum);
    } else if (thread < 2u * CHUNK) {
        unsigned i = thread - CHUNK;
        float sum = 0.0f;
        for (unsigned j = 0u; j <= i; j++) {
            sum += gs[j];
        }
        decays_in[i] = exp_neg(sum);
    }
    block_sync();

#pragma unroll
    for (unsigned r = 0u; r < 4u; r++) {
        unsigned i = 4u * rows + r;
        float of_k[4] = {kk[r].x, kk[r].y, kk[r].z, kk[r].w};
        float of_q[4] = {qk[r].x, qk[r].y, qk[r].z, qk[r].w};
#pragma unroll
        for (unsigned c = 0u; c < 4u; c++) {
            unsigned j = 4u * others + c;
            // Scales first: a small decay times a small scale could vanish.
            float decay = j <= i ? system[i][j] : 0.0f;
            of_q[c] = q_scales[i] * of_q[c] * k_scales[j] * decay;
            system[i][j] = j < i ? betas[i] * k_scales[i] * of_k[c] * k_scales[j] * decay : 0.0f;
        }
        if (i < chunk.n_rows) {
            prepared_of(prepared, p, chunk.first + i, head)[GROUPS + others] = {of_q[0], of_q[1], of_q[2], of_q[3]};
        }
    }
    block_sync();

    // A thread has a column of the inverse.
    if (thread < CHUNK) {
        for (unsigned i = 0u; i < CHUNK; i++) {
            float sum = i == thread ? 1.0f : 0.0f;
#pragma unroll 4
            for (unsigned l = 0u; l < i; l++) {
                sum -= system[i][l] * inverse[l][thread];
            }
            inverse[i][thread] = sum;
        }
    }
    block_sync();
    for (unsigned item = thread; item < chunk.n_rows * GROUPS; item += THREADS) {
        unsigned i = item / GROUPS;
        unsigned j = 4u * (item % GROUPS);
        prepared_of(prepared, p, chunk.first + i, head)[item % GROUPS] = {
            inverse[i][j] * betas[j], inverse[i][j + 1u] * betas[j + 1u], inverse[i][j + 2u] * betas[j + 2u],
            inverse[i][j + 3u] * betas[j + 3u]};
    }
    if (thread < chunk.n_rows) {
        prepared_of(prepared, p, chunk.first + thread, head)[2u * GROUPS] = {
            decays_in[thread], decays_out[thread], k_scales[thread], q_scales[thread]};
    }

    unsigned stored = run.n_rows - p.n_recorded;
    if (chunk.before >= stored) {
        unsigned half = 1u - (unsigned(commits[p.commits_off + 2u * size_t(run_index) + 1u]) & 1u);
        unsigned ratio = p.n_v_heads / p.n_k_heads;
        bool writes_key = TILED ? head < p.n_k_heads : head % ratio == 0u;
        float* to = record + ((size_t(run.slot) * 2u + half) * p.n_recorded + chunk.before - stored) * p.record_len;
        if (thread < chunk.n_rows) {
            to[size_t(thread) * p.record_len + p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head] =
                gates[p.gates_off + size_t(chunk.first + thread) * 2u * p.n_v_heads + head];
        }
        if (writes_key) {
            for (unsigned item = thread; item < chunk.n_rows * p.k_dim; item += THREADS) {
                unsigned row = item / p.k_dim;
                unsigned at = key_head * p.k_dim + item % p.k_dim;
                const float* token = qkv + p.qkv_off + size_t(chunk.first + row) * p.qkv_s;
                to[size_t(row) * p.record_len + at] = k_scales[row] * token[p.n_k_heads * p.k_dim + at];
            }
        }
    }
}

KERNEL delta_rule_chunk(const float* __restrict__ qkv, const float* __restrict__ gates, const int* __restrict__ runs,
                        const int* __restrict__ commits, float* __restrict__ state, float* __restrict__ record,
                        float* __restrict__ y, const float4* __restrict__ prepared, const Params p) {
    SHARED float4 columns[PADDED * QUADS]; // the state: channel of a key -> quad
    SHARED float4 solved[CHUNK * QUADS];   // right sides, then u: token -> quad
    SHARED float4 slice[2u * SLICE * (GROUPS + 1u)];
    SHARED float4 factors[CHUNK];
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    unsigned thread = thread_id();
    unsigned head = (index / p.n_columns) % p.n_v_heads;
    unsigned run_index = index / (p.n_columns * p.n_v_heads);
    Run run = run_at(runs, p, run_index);
    if (run.n_rows <= p.longest) {
        return;
    }
    unsigned key_head = key_head_of(p, head);
    unsigned block_channel = (index % p.n_columns) * COLUMNS;
    unsigned quad = thread % QUADS;
    unsigned group = thread / QUADS;
    unsigned channel = block_channel + 4u * quad;
    unsigned n_channels = channel < p.v_dim ? p.v_dim - channel : 0u;
    bool fresh = run.position == 0u;
    const int* commit = commits + p.commits_off + 2u * size_t(run_index);
    unsigned n_commit = 0u;
    if (!fresh && commit[0] > 0) {
        n_commit = unsigned(commit[0]) < p.n_recorded ? unsigned(commit[0]) : p.n_recorded;
    }
    unsigned half = unsigned(commit[1]) & 1u;
    unsigned values = p.n_k_heads * p.k_dim + head * p.v_dim;
    unsigned g_at = p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head;
    float* head_state = state + (size_t(run.slot) * p.n_v_heads + head) * p.v_dim * p.k_dim;

    // The state, and what is committed of the record.
#pragma unroll 1
    for (unsigned item = thread; item < PADDED * QUADS; item += THREADS) {
        unsigned i = item % PADDED;
        unsigned first = block_channel + 4u * (item / PADDED);
        unsigned n = first < p.v_dim ? p.v_dim - first : 0u;
        float4 s = {0.0f, 0.0f, 0.0f, 0.0f};
        if (i < p.k_dim && n > 0u && !fresh) {
            s = load_some(head_state + size_t(first) * p.k_dim + i, p.k_dim, n);
            for (unsigned t = 0u; t < n_commit; t++) {
                const float* old = record + ((size_t(run.slot) * 2u + half) * p.n_recorded + t) * p.record_len;
                s = scaled(exp_neg(fminf(old[g_at], 0.0f)), s);
                add_scaled(s, old[key_head * p.k_dim + i], load_some(old + values + first, 1u, n));
            }
        }
        columns[i * QUADS + item / PADDED] = s;
    }

    unsigned n_stored = n_stored_chunks(p, run);
    unsigned n_all = n_stored + n_chunks(p.n_recorded);
    for (unsigned chunk_index = 0u; chunk_index <= n_all; chunk_index++) {
        block_sync();
        if (chunk_index == n_stored) {
            for (unsigned item = thread; item < PADDED * QUADS; item += THREADS) {
                unsigned i = item % PADDED;
                unsigned first = block_channel + 4u * (item / PADDED);
                if (i < p.k_dim && first < p.v_dim) {
                    store_some(head_state + size_t(first) * p.k_dim + i, p.k_dim, p.v_dim - first,
                               columns[i * QUADS + item / PADDED]);
                }
            }
        }
        if (chunk_index == n_all) {
            break;
        }
        Chunk chunk = chunk_of(p, run, chunk_index);
        const float4* chunk_prepared = prepared + (size_t(chunk.first) * p.n_v_heads + head) * PREPARED;
        unsigned next = p.n_v_heads * PREPARED;
        for (unsigned i = thread; i < CHUNK; i += THREADS) {
            factors[i] = i < chunk.n_rows ? chunk_prepared[i * next + 2u * GROUPS] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }

        // Keys, in the first half of the groups, and queries times state.
        float4 sum[4] = {};
        for (unsigned base = 0u; base < PADDED; base += SLICE) {
            block_sync();
#pragma unroll 2
            for (unsigned item = thread; item < SLICE * 2u * GROUPS; item += THREADS) {
                unsigned i = item % SLICE;
                slice[i * STRIDE + item / SLICE] = four_tokens(qkv, p, chunk, key_head, item / SLICE, base + i);
            }
            block_sync();
#pragma unroll 4
            for (unsigned i = 0u; i < SLICE; i++) {
                float4 four = slice[i * STRIDE + group];
                float4 s = columns[(base + i) * QUADS + quad];
                add_scaled(sum[0], four.x, s);
                add_scaled(sum[1], four.y, s);
                add_scaled(sum[2], four.z, s);
                add_scaled(sum[3], four.w, s);
            }
        }
        unsigned row = 4u * (group % GROUPS);
        bool of_keys = group < GROUPS;
#pragma unroll
        for (unsigned r = 0u; r < 4u; r++) {
            if (of_keys) {
                float4 right_side = {0.0f, 0.0f, 0.0f, 0.0f};
                if (row + r < chunk.n_rows) {
                    const float* v = qkv + p.qkv_off + size_t(chunk.first + row + r) * p.qkv_s +
                                     2u * p.n_k_heads * p.k_dim + head * p.v_dim + channel;
                    right_side = load_some(v, 1u, n_channels);
                    add_scaled(right_side, -factors[row + r].x, scaled(factors[row + r].z, sum[r]));
                }
                solved[(row + r) * QUADS + quad] = right_side;
                sum[r] = {0.0f, 0.0f, 0.0f, 0.0f};
            } else {
                sum[r] = scaled(factors[row + r].x, scaled(factors[row + r].w, sum[r]));
            }
        }
        block_sync();
        // Rows of T times right sides make u; then rows of P times u make the outputs.
#pragma unroll
        for (unsigned turn = 0u; turn < 2u; turn++) {
            bool mine = of_keys == (turn == 0u);
            if (mine) {
#pragma unroll 1
                for (unsigned other = 0u; other <= group % GROUPS; other++) {
                    float4 x[4];
#pragma unroll
                    for (unsigned r = 0u; r < 4u; r++) {
                        x[r] = solved[(4u * other + r) * QUADS + quad];
                    }
#pragma unroll
                    for (unsigned r = 0u; r < 4u; r++) {
                        if (row + r < chunk.n_rows) {
                            add_product(sum[r], chunk_prepared[(row + r) * next + turn * GROUPS + other], x);
                        }
                    }
                }
            }
            if (turn == 0u) {
                block_sync();
                if (mine) {
#pragma unroll
                    for (unsigned r = 0u; r < 4u; r++) {
                        solved[(row + r) * QUADS + quad] = sum[r];
                    }
                }
                block_sync();
            }
        }
        // The threads of keys have u, those of queries outputs.
#pragma unroll
        for (unsigned r = 0u; r < 4u; r++) {
            if (row + r < chunk.n_rows) {
                if (!of_keys) {
                    size_t at = (size_t(chunk.first + row + r) * p.n_v_heads + head) * p.v_dim + channel;
                    store_some(y + at, 1u, n_channels, sum[r]);
                } else if (chunk_index >= n_stored) {
                    unsigned recorded = chunk.before + row + r - (run.n_rows - p.n_recorded);
                    size_t at = (size_t(run.slot) * 2u + 1u - half) * p.n_recorded + recorded;
                    store_some(record + at * p.record_len + values + channel, 1u, n_channels, sum[r]);
                }
            }
        }

        if (chunk_index + 1u < n_all || p.n_recorded == 0u) {
            float decay = factors[chunk.n_rows - 1u].x;
            for (unsigned base = 0u; base < PADDED; base += KEY_SLICE) {
                if (!WHOLE) {
                    block_sync();
#pragma unroll 2
                    for (unsigned item = thread; item < KEY_SLICE * GROUPS; item += THREADS) {
                        unsigned i = item % KEY_SLICE;
                        unsigned of = item / KEY_SLICE;
                        slice[i * KEY_STRIDE + of] = four_tokens(qkv, p, chunk, key_head, of, base + i);
                    }
                    block_sync();
                }
                // Two rows of the state at a time.
                unsigned n = PADDED - base < KEY_SLICE ? PADDED - base : KEY_SLICE;
                for (unsigned i = group; i < n; i += 4u * GROUPS) {
                    bool has_second = i + 2u * GROUPS < n;
                    unsigned second = has_second ? i + 2u * GROUPS : i;
                    float4 s0 = scaled(decay, columns[(base + i) * QUADS + quad]);
                    float4 s1 = scaled(decay, columns[(base + second) * QUADS + quad]);
#pragma unroll 2
                    for (unsigned other = 0u; other < GROUPS; other++) {
                        float4 k0 = slice[i * KEY_STRIDE + other];
                        float4 k1 = slice[second * KEY_STRIDE + other];
                        const float4* factor = factors + 4u * other;
                        scale_each(k0, factor[0].z, factor[1].z, factor[2].z, factor[3].z);
                        scale_each(k1, factor[0].z, factor[1].z, factor[2].z, factor[3].z);
                        scale_each(k0, factor[0].y, factor[1].y, factor[2].y, factor[3].y);
                        scale_each(k1, factor[0].y, factor[1].y, factor[2].y, factor[3].y);
                        float4 x[4];
#pragma unroll
                        for (unsigned r = 0u; r < 4u; r++) {
                            x[r] = solved[(4u * other + r) * QUADS + quad];
                        }
                        add_product(s0, k0, x);
                        add_product(s1, k1, x);
                    }
                    columns[(base + i) * QUADS + quad] = s0;
                    if (has_second) {
                        columns[(base + second) * QUADS + quad] = s1;
                    }
                }
            }
        }
    }
}

KERNEL delta_rule_chunk_short(const float* __restrict__ qkv, const float* __restrict__ gates,
                              const int* __restrict__ runs, const int* __restrict__ commits, float* __restrict__ state,
                              float* __restrict__ record, float* __restrict__ y, float4* __restrict__ prepared,
                              const Params p) {
    unsigned index = folded();
    if (index >= p.n_blocks) {
        return;
    }
    by_token(index, p.longest, qkv, gates, runs, commits, state, record, y, p);
}
