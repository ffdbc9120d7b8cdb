// scatter_rows: copies rows of words to listed rows of a table. A thread moves one word. Bound by memory.
#include "lib/grid.cuh"

KERNEL scatter_rows(const unsigned* __restrict__ x, const int* __restrict__ idx, unsigned* __restrict__ y,
                    const Params p) {
    unsigned item = folded() * THREADS + thread_id();
    if (item >= p.n_items) {
        return;
    }
    unsigned row = item / p.n;
    int target_row = idx[p.idx_off + row];
    if (target_row < 0 || unsigned(target_row) >= p.n_rows) {
        return;
    }
    unsigned i = item % p.n;
    y[p.y_off + size_t(target_row) * p.y_s + i] = x[p.x_off + size_t(row) * p.x_s + i];
}
