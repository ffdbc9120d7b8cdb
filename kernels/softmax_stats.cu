// softmax_stats: the largest element of each row and the sum of its exponentials.
// softmax_stats: one block per slice of a row, whose threads stride over it. softmax_stats_merge: one block per row.
// Bound by memory.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/rows.cuh"

// Elements of a thread that are summed before they join the others.
constexpr unsigned RUN = 32u;

// Nothing yet: the smallest finite number and no terms. x is the maximum, y the sum.
DEVICE float2 empty() { return {-0x1.fffffep+127f, 0.0f}; }

// Maximum and sum of two sets.
DEVICE float2 join(float2 a, float2 b) {
    float e = exp_neg(-fabsf(a.x - b.x));
    return {fmaxf(a.x, b.x), b.x > a.x ? a.y * e + b.y : a.y + b.y * e};
}

// Maximum and sum of all threads, for thread 0.
DEVICE float2 block_join(float2 value, unsigned thread) {
    SHARED float2 stats_of[THREADS];
    stats_of[thread] = value;
    for (unsigned n = THREADS / 2u; n > 0u; n /= 2u) {
        block_sync();
        if (thread < n) {
            stats_of[thread] = join(stats_of[thread], stats_of[thread + n]);
        }
    }
    return stats_of[thread];
}

// `parts`: maximum and sum, by row, by slice.
KERNEL softmax_stats(const float* __restrict__ x, float2* __restrict__ parts, uint2* __restrict__, const Params p) {
    unsigned thread = thread_id();
    unsigned index = folded();
    unsigned row = index / p.n_slices;
    if (row >= p.n_rows) {
        return;
    }
    unsigned first = (index % p.n_slices) * p.slice;
    unsigned end = first + p.slice < p.n ? first + p.slice : p.n;
    const float* x_row = x + row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    float2 stats = empty();
    // Runs are summed on their own: a thousand equal terms in a row would all be rounded the same way.
    for (unsigned run = first + thread; run < end; run += RUN * THREADS) {
        unsigned run_end = run + RUN * THREADS < end ? run + RUN * THREADS : end;
        float2 part = empty();
        for (unsigned i = run; i < run_end; i += THREADS) {
            part = join(part, {x_row[i], 1.0f});
        }
        stats = join(stats, part);
    }
    stats = block_join(stats, thread);
    if (thread == 0u) {
        parts[index] = stats;
    }
}

KERNEL softmax_stats_merge(const float* __restrict__, const float2* __restrict__ parts, uint2* __restrict__ y,
                           const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded();
    if (row >= p.n_rows) {
        return;
    }
    float2 stats = empty();
    for (unsigned i = thread; i < p.n_slices; i += THREADS) {
        stats = join(stats, parts[size_t(row) * p.n_slices + i]);
    }
    stats = block_join(stats, thread);
    if (thread == 0u) {
        // Without a term above -inf the maximum is -inf.
        y[row] = stats.y == 0.0f ? uint2{0xff800000u, 0u} : uint2{bits_of(stats.x), bits_of(stats.y)};
    }
}
