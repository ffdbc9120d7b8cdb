// argmax: the index of the largest element of each row.
// argmax: one block per slice of a row, whose threads stride over it. argmax_merge: one block per row.
// Bound by memory.
#include "lib/grid.cuh"
#include "lib/order.cuh"
#include "lib/rows.cuh"

// The larger key, of equals the lower index: x is the key, y the index.
DEVICE uint2 better(uint2 a, uint2 b) { return b.x > a.x || (b.x == a.x && b.y < a.y) ? b : a; }

// The best of all threads, for thread 0.
DEVICE uint2 block_best(uint2 value, unsigned thread) {
    SHARED uint2 best_of[THREADS];
    best_of[thread] = value;
    for (unsigned n = THREADS / 2u; n > 0u; n /= 2u) {
        block_sync();
        if (thread < n) {
            best_of[thread] = better(best_of[thread], best_of[thread + n]);
        }
    }
    return best_of[thread];
}

// `parts`: key and index, by row, by slice.
KERNEL argmax(const unsigned* __restrict__ x, uint2* __restrict__ parts, unsigned* __restrict__, const Params p) {
    unsigned thread = thread_id();
    unsigned index = folded();
    unsigned row = index / p.n_slices;
    if (row >= p.n_rows) {
        return;
    }
    unsigned first = (index % p.n_slices) * p.slice;
    unsigned end = first + p.slice < p.n ? first + p.slice : p.n;
    const unsigned* x_row = x + row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    uint2 best = {0u, 0xffffffffu};
    for (unsigned i = first + thread; i < end; i += THREADS) {
        unsigned key = order_key(x_row[i]);
        if (key > best.x) {
            best = {key, i};
        }
    }
    best = block_best(best, thread);
    if (thread == 0u) {
        parts[index] = best;
    }
}

KERNEL argmax_merge(const unsigned* __restrict__, const uint2* __restrict__ parts, unsigned* __restrict__ y,
                    const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded();
    if (row >= p.n_rows) {
        return;
    }
    uint2 best = {0u, 0xffffffffu};
    for (unsigned i = thread; i < p.n_slices; i += THREADS) {
        best = better(best, parts[size_t(row) * p.n_slices + i]);
    }
    best = block_best(best, thread);
    if (thread == 0u) {
        y[row] = best.x <= KEY_NEG_INF ? 0u : best.y;
    }
}
