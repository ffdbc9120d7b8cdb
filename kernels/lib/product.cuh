// What the matrix products share: which lane holds what, the sums over strands, tiles in shared memory, the output.
//
// A product goes by *runs* of 32 columns. A warp multiplies 16 rows of w (two groups of 8, the groups of the layout) by
// 8 tokens. In fragments (`lib/mma.cuh`) lane 4 g + c holds
//   of w: quads c and 4 + c of the run, of rows g and 8 + g
//   of x: the same quads, of token g
//   of sums: rows g and 8 + g, of tokens 2 c and 2 c + 1
// so the order of columns within a run is not that of the instruction's k, but the same for w and x.
//
// The including file names `w_…` (`lib/tile.cuh`), THREADS, STEP, AHEAD and Params with n_tokens, n_rows, row0, d_out, n, w_group,
// n_row_blocks, n_splits, has_bias and scale.
#pragma once
#include "lib/grid.cuh"
#include "lib/mma.cuh"
#include "lib/rows.cuh"
#include "lib/tile.cuh"

constexpr unsigned WARPS = THREADS / 32u;

DEVICE unsigned n_runs(const Params& p) { return (p.n + 31u) / 32u; }

// Words of a group of 8 rows.
DEVICE size_t group_words(const Params& p) { return size_t(p.w_group) * w_STEP; }

// The first word of group `group` of the bound window; groups behind the end repeat the last and are not stored.
DEVICE const unsigned* group_start(const unsigned* w_data, const Params& p, unsigned group) {
    unsigned last = (p.n_rows - 1u) / 8u;
    return w_data + (group < last ? group : last) * group_words(p);
}

// Row `row` of the bound window and token `t`.
DEVICE void store(const float* bias, float* y, const Params& p, unsigned t, unsigned row, float sum) {
    if (t < p.n_tokens && row < p.n_rows) {
        float out = sum * p.scale;
        y[size_t(t) * p.d_out + p.row0 + row] = p.has_bias == 1u ? out + bias[p.row0 + row] : out;
    }
}

// The same for a block that multiplied every run, or, where blocks divide the runs between them, its part of the sum.
DEVICE void store_part(const float* bias, float* y, const Params& p, unsigned split, unsigned t, unsigned row, float sum) {
    if (p.n_splits == 1u) {
        store(bias, y, p, t, row, sum);
    } else if (t < p.n_tokens && row < p.n_rows) {
        y[(size_t(split) * p.n_tokens + t) * p.d_out + p.row0 + row] = sum;
    }
}

// The sums of blocks that divided the runs, in their order; a thread owns an output.
DEVICE void merge_parts(const float* sums, const float* bias, float* y, const Params& p) {
    size_t n = size_t(p.n_tokens) * p.d_out;
    size_t i = size_t(folded()) * THREADS + thread_id();
    if (i >= n) {
        return;
    }
    float sum = 0.0f;
    for (unsigned split = 0u; split < p.n_splits; split++) {
        sum += sums[split * n + i];
    }
    float out = sum * p.scale;
    y[i] = p.has_bias == 1u ? out + bias[i % p.d_out] : out;
}

// Adds the sums of the warps, in their order, and stores them: `sum[m][t]` is the fragment of rows 16 m .. and tokens
// 8 t .. behind `row` and `token`.
template <unsigned TILES, unsigned TOKEN_TILES>
DEVICE void store_warps(const float (&sum)[TILES][TOKEN_TILES][4], const float* bias, float* y, const Params& p,
                        unsigned token, unsigned row) {
    constexpr unsigned ITEMS = TILES * TOKEN_TILES * 4u;
    SHARED float sums[WARPS][ITEMS][32];
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
#pragma unroll
        for (unsigned t = 0u; t < TOKEN_TILES; t++) {
            for (unsigned e = 0u; e < 4u; e++) {
                sums[warp_id()][(m * TOKEN_TILES + t) * 4u + e][lane_id()] = sum[m][t][e];
            }
        }
    }
    block_sync();
    for (unsigned job = thread_id(); job < ITEMS * 32u; job += THREADS) {
        unsigned item = job / 32u, lane = job % 32u;
        float total = 0.0f;
        for (unsigned warp = 0u; warp < WARPS; warp++) {
            total += sums[warp][item][lane];
        }
        Place at = mma_c(lane, item % 4u);
        unsigned tile = item / 4u;
        store(bias, y, p, token + 8u * (tile % TOKEN_TILES) + at.column, row + 16u * (tile / TOKEN_TILES) + at.row, total);
    }
}

// Blocks of many tokens go by steps of STEP runs; copies are AHEAD steps ahead of what is multiplied. Weights lie in
// shared memory in chunks: whole tiles of at least a step, of all groups of the block's rows. A chunk is copied while
// the one CHUNKS_AHEAD before it is multiplied, in slices, one a step, of which the last is issued in time.
constexpr unsigned CHUNK_RUNS = w_RUNS / 2u > STEP ? w_RUNS / 2u : STEP;
constexpr unsigned CHUNK_WORDS = (2u * CHUNK_RUNS / w_RUNS) * w_TILE;
constexpr unsigned CHUNK_STEPS = CHUNK_RUNS / STEP;
constexpr unsigned CHUNKS_AHEAD = (AHEAD + CHUNK_STEPS - 1u) / CHUNK_STEPS;
constexpr unsigned SPARE_STEPS = CHUNKS_AHEAD * CHUNK_STEPS - AHEAD;
constexpr unsigned SLICES = SPARE_STEPS + 1u < CHUNK_STEPS ? SPARE_STEPS + 1u : CHUNK_STEPS;
// Bytes of a copy: groups of a type whose tiles are no multiple of 16 bytes start anywhere.
constexpr unsigned CHUNK_PIECE = w_STEP % 4u == 0u ? 16u : 8u;

// Starts copying slice `slice` of chunk `chunk` of GROUPS groups from `group` on. What lies behind the end
// of a group is zero, and decodes to zeros or to what meets zeros of x.
template <unsigned GROUPS>
DEVICE void copy_chunk(unsigned* to, const unsigned* w_data, const Params& p, unsigned group, unsigned chunk, unsigned slice) {
    constexpr unsigned WORDS = CHUNK_PIECE / 4u, PIECES = CHUNK_WORDS / WORDS;
    constexpr unsigned JOBS = (GROUPS * PIECES + SLICES - 1u) / SLICES, TURNS = (JOBS + THREADS - 1u) / THREADS;
    constexpr unsigned UNROLLED = TURNS < 4u ? TURNS : 1u;
    unsigned words = p.w_group * w_STEP, last = (p.n_rows - 1u) / 8u;
#pragma unroll UNROLLED
    for (unsigned turn = 0u; turn < TURNS; turn++) {
        unsigned i = turn * THREADS + thread_id(), job = slice * JOBS + i;
        if (i < JOBS && job < GROUPS * PIECES) {
            unsigned at = job % PIECES * WORDS, from = chunk * CHUNK_WORDS + at, own = group + job / PIECES;
            // Groups behind the end repeat the last and are not stored.
            const unsigned* start = w_data + size_t(own < last ? own : last) * words;
            copy_async<CHUNK_PIECE>(to + job * WORDS, start + from, from < words);
        }
    }
}

// Multiplies runs start .. end, `start` in whole chunks: `copy_x(stage, run)` starts copying the step of x that begins
// with `run`, `multiply(stage, chunk, run)` multiplies it with the runs of the chunk from `run` on.
template <unsigned GROUPS, class Stage, class CopyX, class Multiply>
DEVICE void for_each_step(const unsigned* w_data, const Params& p, unsigned group, unsigned start, unsigned end,
                          CopyX copy_x, Multiply multiply) {
    constexpr unsigned WORDS = GROUPS * CHUNK_WORDS;
    Stage* stages = dynamic_shared<Stage>();
    unsigned* chunks = reinterpret_cast<unsigned*>(stages + AHEAD + 1u);
    unsigned n_runs = start < end ? end - start : 0u;
    unsigned n_steps = (n_runs + STEP - 1u) / STEP, n_chunks = (n_runs + CHUNK_RUNS - 1u) / CHUNK_RUNS;
    for (unsigned chunk = 0u; chunk < CHUNKS_AHEAD && chunk < n_chunks; chunk++) {
        for (unsigned slice = 0u; slice < SLICES; slice++) {
            copy_chunk<GROUPS>(chunks + chunk * WORDS, w_data, p, group, start / CHUNK_RUNS + chunk, slice);
        }
    }
    for (unsigned step = 0u; step < AHEAD; step++) {
        if (step < n_steps) {
            copy_x(stages[step], start + step * STEP);
        }
        copy_commit();
    }
    for (unsigned step = 0u; step < n_steps; step++) {
        // The group of this step is there; those of the AHEAD - 1 behind it may be under way.
        copy_wait<int(AHEAD) - 1>();
        block_sync();
        // What was read a step ago is free.
        unsigned next = step + AHEAD;
        if (next < n_steps) {
            copy_x(stages[next % (AHEAD + 1u)], start + next * STEP);
        }
        unsigned chunk = step / CHUNK_STEPS, slice = step % CHUNK_STEPS;
        unsigned ahead = chunk + CHUNKS_AHEAD;
        if (slice < SLICES && ahead < n_chunks) {
            copy_chunk<GROUPS>(chunks + ahead % (CHUNKS_AHEAD + 1u) * WORDS, w_data, p, group,
                               start / CHUNK_RUNS + ahead, slice);
        }
        copy_commit();
        multiply(stages[step % (AHEAD + 1u)], chunks + chunk % (CHUNKS_AHEAD + 1u) * WORDS, slice * STEP);
    }
}

// Rows of 64 bytes in shared memory, placed such that the same quarter of eight neighbouring rows meets each bank once.
DEVICE unsigned swizzled(unsigned row, unsigned quarter) { return 64u * row + 16u * (quarter ^ (row / 2u % 4u)); }
