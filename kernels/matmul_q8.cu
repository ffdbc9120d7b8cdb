// matmul_q8: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o] with x in int8 blocks of 32 (`quantize_q8`).
//
// A block is a run (`lib/product.cuh`). For a run: y += d * sum(a * sum(code * q)) + b * (d * sum q), `a` and `b` the
// scale and minimum of the weights; sums of codes are exact integers, whoever makes them, and the rest is in f32 in one
// order: so the two kernels for few tokens give the same bits.
//
// Up to 16 tokens a block owns 16 * TILES rows and its warps every WARPS-th group of four runs, each of which has a sum
// of its own; these are added in order. Weights go from memory to registers once. Bound by memory:
// matmul_q8_dots, 1 to 3 tokens: a lane owns a row and one of four runs, eight products of four bytes a token. Of 4 bits
//   on an H200 a quad of columns has 13 issue slots a lane and takes 5 to 10.
// matmul_q8_few, 4 to 16: on tensor cores, 8 or 16 tokens at the price of one; 10 to 14 slots. Lane c makes the scales of
//   the c-th run of four, and the others ask it for them.
//
// matmul_q8_many, from 17 tokens: blocks of 16 * TILES * WARPS rows by TOKENS tokens; STEP runs of x and the next slice
// of a chunk of w come by asynchronous copies AHEAD steps early. Where blocks are few they divide the runs
// between them and matmul_q8_merge adds their sums in order. Bound by the conversion of sums, 4 to 5 instructions a lane
// and instruction of the tensor cores.
#include "lib/product.cuh"

constexpr unsigned TOKEN_TILES = (TOKENS + 7u) / 8u;

// What a run has beside its codes, of one row.
struct RunScale {
    float a, b; // of the first half and the second where they differ, scale and minimum otherwise
};

DEVICE RunScale run_scale(const unsigned* tile, unsigned row, unsigned run) {
    Scale scale = w_scale(tile, nullptr, row, run);
    return {scale.a, w_SPLIT ? w_scale(tile, nullptr, row, run + 1u).a : scale.b};
}

// Adds a run: the sum of all its codes, or of each half of them; s = (d, d * sum q).
DEVICE float add_run(float sum, float first, float second, RunScale scale, float2 s) {
    float part = scale.a * first;
    if (w_SPLIT) {
        part = fmaf(scale.b, second, part);
    }
    sum = fmaf(part, s.x, sum);
    return w_MIN ? fmaf(scale.b, s.y, sum) : sum;
}

// Integers below 2^22 as f32: counted from these bits they are the last bits of a float.
constexpr int COUNT_FROM = 0x4b400000;
DEVICE float counted(int sum) { return float_of(unsigned(sum)) - 12582912.0f; }

// Codes of 16 rows and a run as a lane holds them: `tiles` lead to rows 0 and 8 and to the run, whose first half is run
// `run` of 16 columns there.
DEVICE void codes(unsigned (&to)[4], const unsigned* const (&tiles)[2], unsigned run) {
    unsigned row = lane_id() / 4u, c = lane_id() % 4u;
    for (unsigned r = 0u; r < 2u; r++) {
        to[r] = w_packed(tiles[r], nullptr, row, 4u * run + c);
        to[r + 2u] = w_packed(tiles[r], nullptr, row, 4u * run + 4u + c);
    }
}

// Adds a run to the fragment of 16 rows and 8 tokens; `scale` is of rows g and 8 + g, `s` of tokens 2 c and 2 c + 1.
DEVICE void multiply(float (&sum)[4], const unsigned (&w)[4], const unsigned (&x)[2], const RunScale (&scale)[2],
                     const float2 (&s)[2]) {
    int first[4] = {COUNT_FROM, COUNT_FROM, COUNT_FROM, COUNT_FROM};
    if (w_SPLIT) {
        int second[4] = {COUNT_FROM, COUNT_FROM, COUNT_FROM, COUNT_FROM};
        unsigned low[4] = {w[0], w[1], 0u, 0u}, high[4] = {0u, 0u, w[2], w[3]};
        mma_s8(first, low, x);
        mma_s8(second, high, x);
        for (unsigned e = 0u; e < 4u; e++) {
            sum[e] = add_run(sum[e], counted(first[e]), counted(second[e]), scale[e / 2u], s[e % 2u]);
        }
    } else {
        mma_s8(first, w, x);
        for (unsigned e = 0u; e < 4u; e++) {
            sum[e] = add_run(sum[e], counted(first[e]), 0.0f, scale[e / 2u], s[e % 2u]);
        }
    }
}

KERNEL matmul_q8_dots(const uint4* __restrict__ x_q, const float2* __restrict__ x_s,
                      const unsigned* __restrict__ w_data, const float* __restrict__ bias, float* __restrict__ y,
                      const Params p) {
    if (!FEW || TOKENS > 3u) {
        return;
    }
    SHARED float sums[WARPS][2u * TILES][8][TOKENS];
    unsigned row_block = folded();
    if (row_block >= p.n_row_blocks) {
        return;
    }
    unsigned row = lane_id() % 8u, own = lane_id() / 8u;
    const unsigned* groups[2u * TILES];
#pragma unroll
    for (unsigned m = 0u; m < 2u * TILES; m++) {
        groups[m] = group_start(w_data, p, 2u * TILES * row_block + m);
    }
    float sum[2u * TILES][TOKENS] = {};
    unsigned runs = n_runs(p);
    for (unsigned group = warp_id(); 4u * group < runs; group += WARPS) {
        unsigned run = 4u * group + own;
        if (run >= runs) {
            break;
        }
        unsigned x[TOKENS][8];
        float2 s[TOKENS];
#pragma unroll
        for (unsigned t = 0u; t < TOKENS; t++) {
            size_t at = size_t(t) * runs + run;
            uint4 low = x_q[p.q_off + 2u * at], high = x_q[p.q_off + 2u * at + 1u];
            unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            for (unsigned i = 0u; i < 8u; i++) {
                x[t][i] = words[i];
            }
            s[t] = x_s[p.s_off + at];
        }
#pragma unroll
        for (unsigned m = 0u; m < 2u * TILES; m++) {
            const unsigned* tile = groups[m] + size_t(2u * run / w_RUNS) * w_TILE;
            unsigned in_tile = 2u * run % w_RUNS;
            unsigned w[8];
            for (unsigned i = 0u; i < 8u; i++) {
                w[i] = w_packed(tile, nullptr, row, 4u * in_tile + i);
            }
            RunScale scale = run_scale(tile, row, in_tile);
#pragma unroll
            for (unsigned t = 0u; t < TOKENS; t++) {
                int first = COUNT_FROM, second = COUNT_FROM;
                for (unsigned i = 0u; i < 4u; i++) {
                    first = dot4(int(w[i]), int(x[t][i]), first);
                    if (w_SPLIT) {
                        second = dot4(int(w[i + 4u]), int(x[t][i + 4u]), second);
                    } else {
                        first = dot4(int(w[i + 4u]), int(x[t][i + 4u]), first);
                    }
                }
                sum[m][t] = add_run(sum[m][t], counted(first), counted(second), scale, s[t]);
            }
        }
    }
    warp_sync();
#pragma unroll
    for (unsigned m = 0u; m < 2u * TILES; m++) {
#pragma unroll
        for (unsigned t = 0u; t < TOKENS; t++) {
            // Runs 0 and 1, 2 and 3, then both.
            float both = sum[m][t] + shuffle_xor(sum[m][t], 8u);
            sums[warp_id()][m][row][t] = both + shuffle_xor(both, 16u);
        }
    }
    block_sync();
    for (unsigned job = thread_id(); job < 16u * TILES * TOKENS; job += THREADS) {
        unsigned at = job % (16u * TILES), t = job / (16u * TILES);
        float total = 0.0f;
        for (unsigned warp = 0u; warp < WARPS; warp++) {
            total += sums[warp][at / 8u][at % 8u][t];
        }
        store(bias, y, p, t, 16u * TILES * row_block + at, total);
    }
}

KERNEL matmul_q8_few(const unsigned* __restrict__ x_q, const float2* __restrict__ x_s,
                     const unsigned* __restrict__ w_data, const float* __restrict__ bias, float* __restrict__ y,
                     const Params p) {
    if (!FEW || TOKENS < 8u) {
        return;
    }
    unsigned row_block = folded();
    if (row_block >= p.n_row_blocks) {
        return;
    }
    unsigned g = lane_id() / 4u, c = lane_id() % 4u;
    const unsigned* groups[TILES][2];
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
        for (unsigned r = 0u; r < 2u; r++) {
            groups[m][r] = group_start(w_data, p, 2u * (TILES * row_block + m) + r);
        }
    }
    float sum[4][TILES][TOKEN_TILES][4] = {};
    unsigned runs = n_runs(p);
    for (unsigned group = warp_id(); 4u * group < runs; group += WARPS) {
        // Runs behind the end repeat the last and are not multiplied.
        unsigned own = 4u * group + c < runs ? 4u * group + c : runs - 1u;
        RunScale scales[TILES][2];
#pragma unroll
        for (unsigned m = 0u; m < TILES; m++) {
            for (unsigned r = 0u; r < 2u; r++) {
                const unsigned* tile = groups[m][r] + size_t(2u * own / w_RUNS) * w_TILE;
                scales[m][r] = run_scale(tile, g, 2u * own % w_RUNS);
            }
        }
#pragma unroll
        for (unsigned i = 0u; i < 4u; i++) {
            unsigned run = 4u * group + i;
            if (run >= runs) {
                break;
            }
            unsigned x[TOKEN_TILES][2];
            float2 s[TOKEN_TILES][2];
#pragma unroll
            for (unsigned t = 0u; t < TOKEN_TILES; t++) {
                // Tokens behind the end repeat the last and are not stored.
                unsigned token = 8u * t + g < p.n_tokens ? 8u * t + g : p.n_tokens - 1u;
                size_t at = 4u * size_t(p.q_off) + 8u * (size_t(token) * runs + run) + c;
                x[t][0] = x_q[at];
                x[t][1] = x_q[at + 4u];
                for (unsigned e = 0u; e < 2u; e++) {
                    token = 8u * t + 2u * c + e < p.n_tokens ? 8u * t + 2u * c + e : p.n_tokens - 1u;
                    s[t][e] = x_s[p.s_off + size_t(token) * runs + run];
                }
            }
#pragma unroll
            for (unsigned m = 0u; m < TILES; m++) {
                RunScale scale[2];
                const unsigned* tiles[2];
                for (unsigned r = 0u; r < 2u; r++) {
                    scale[r].a = shuffle(scales[m][r].a, 4u * g + i);
                    scale[r].b = w_SPLIT || w_MIN ? shuffle(scales[m][r].b, 4u * g + i) : 0.0f;
                    tiles[r] = groups[m][r] + size_t(2u * run / w_RUNS) * w_TILE;
                }
                unsigned w[4];
                codes(w, tiles, 2u * run % w_RUNS);
#pragma unroll
                for (unsigned t = 0u; t < TOKEN_TILES; t++) {
                    multiply(sum[i][m][t], w, x[t], scale, s[t]);
                }
            }
        }
    }
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
#pragma unroll
        for (unsigned t = 0u; t < TOKEN_TILES; t++) {
            for (unsigned e = 0u; e < 4u; e++) {
                sum[0][m][t][e] = (sum[0][m][t][e] + sum[1][m][t][e]) + (sum[2][m][t][e] + sum[3][m][t][e]);
            }
        }
    }
    store_warps(sum[0], bias, y, p, 0u, 16u * TILES * row_block);
}

// Tokens of a block of the many, a step of runs each.
constexpr unsigned GROUPS = 2u * TILES * WARPS;
struct Stage {
    unsigned char x[STEP][TOKENS * 32u];
    float2 s[STEP][TOKENS];
};

// Rows of 32 bytes in shared memory, placed such that the same half of eight neighbouring rows meets each bank once.
DEVICE unsigned swizzled_half(unsigned row, unsigned half) { return 32u * row + 16u * (half ^ (row / 4u % 2u)); }

// Starts copying a step of x; tokens and runs behind the end are zero.
DEVICE void copy_x(Stage& to, const unsigned* x_q, const float2* x_s, const Params& p, unsigned first, unsigned run) {
    unsigned runs = n_runs(p);
    for (unsigned job = thread_id(); job < TOKENS * STEP * 2u; job += THREADS) {
        unsigned half = job % 2u, i = job / 2u % STEP, row = job / (2u * STEP);
        bool keep = first + row < p.n_tokens && run + i < runs;
        size_t at = keep ? size_t(first + row) * runs + run + i : 0u;
        copy_async<16>(&to.x[i][swizzled_half(row, half)], x_q + 4u * (p.q_off + 2u * at + half), keep);
        if (half == 0u) {
            copy_async<8>(&to.s[i][row], x_s + p.s_off + at, keep);
        }
    }
}

KERNEL matmul_q8_many(const unsigned* __restrict__ x_q, const float2* __restrict__ x_s,
                      const unsigned* __restrict__ w_data, const float* __restrict__ bias, float* __restrict__ y,
                      const Params p) {
    if (FEW) {
        return;
    }
    // Blocks of the same rows are neighbours, so that the weights stay in the cache.
    unsigned index = folded();
    unsigned n_token_blocks = (p.n_tokens + TOKENS - 1u) / TOKENS;
    unsigned first = index % n_token_blocks * TOKENS;
    unsigned group = index / n_token_blocks % p.n_row_blocks * GROUPS;
    unsigned split = index / n_token_blocks / p.n_row_blocks;
    if (split >= p.n_splits) {
        return;
    }
    unsigned lane = lane_id(), c = lane % 4u;
    unsigned own_group = 2u * TILES * warp_id();
    // Whole chunks of runs.
    unsigned start = split * p.split_runs;
    unsigned end = start + p.split_runs < n_runs(p) ? start + p.split_runs : n_runs(p);
    float sum[TILES][TOKEN_TILES][4] = {};
    auto copy = [&](Stage& to, unsigned run) { copy_x(to, x_q, x_s, p, first, run); };
    auto multiply_step = [&](const Stage& stage, const unsigned* chunk, unsigned run) {
        const unsigned* own = chunk + own_group * CHUNK_WORDS;
        for (unsigned i = 0u; i < STEP; i++) {
            unsigned in_chunk = 2u * (run + i);
            unsigned w[TILES][4];
            RunScale scale[TILES][2];
#pragma unroll
            for (unsigned m = 0u; m < TILES; m++) {
                const unsigned* tiles[2];
                for (unsigned r = 0u; r < 2u; r++) {
                    tiles[r] = own + (2u * m + r) * CHUNK_WORDS + in_chunk / w_RUNS * w_TILE;
                    scale[m][r] = run_scale(tiles[r], lane / 4u, in_chunk % w_RUNS);
                }
                codes(w[m], tiles, in_chunk % w_RUNS);
            }
#pragma unroll
            for (unsigned t = 0u; t < TOKEN_TILES; t++) {
                unsigned x[2];
                ldmatrix<2>(x, &stage.x[i][swizzled_half(8u * t + lane % 8u, lane / 8u % 2u)]);
                float2 s[2] = {stage.s[i][8u * t + 2u * c], stage.s[i][8u * t + 2u * c + 1u]};
#pragma unroll
                for (unsigned m = 0u; m < TILES; m++) {
                    multiply(sum[m][t], w[m], x, scale[m], s);
                }
            }
        }
    };
    for_each_step<GROUPS, Stage>(w_data, p, group, start, end, copy, multiply_step);
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
#pragma unroll
        for (unsigned t = 0u; t < TOKEN_TILES; t++) {
            for (unsigned e = 0u; e < 4u; e++) {
                Place at = mma_c(lane, e);
                store_part(bias, y, p, split, first + 8u * t + at.column, 8u * (group + own_group) + 16u * m + at.row,
                           sum[m][t][e]);
            }
        }
    }
}

// The sums of blocks that divided the runs, in their order.
KERNEL matmul_q8_merge(const float* __restrict__ sums, const float* __restrict__ bias, float* __restrict__ y,
                       const Params p) {
    merge_parts(sums, bias, y, p);
}
