// kv_write: encodes the keys or values of a step into their cells of a paged cache.
// kv_write: plain types. kv_write_blocks: block types. Bound by memory.
#include "lib/grid.cuh"
#include "lib/kv_encode.cuh"
#include "lib/rows.cuh"

DEVICE Rows all_rows(const Params& p) {
    return {p.n_heads, p.head_dim, p.items, p.n_items, p.n_cells, p.row_words, p.narrow, p.slots_off};
}

DEVICE float element_of(const float* x, const Params& p, unsigned row, unsigned i) {
    return i < p.head_dim ? x[row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) + i] : 0.0f;
}

KERNEL kv_write(const float* __restrict__ x, const int* __restrict__ slots, unsigned* __restrict__ cache,
                const Params p) {
    write_words(all_rows(p), slots, cache, folded() * THREADS + thread_id(),
                [&](unsigned row, unsigned i) { return element_of(x, p, row, i); });
}

KERNEL kv_write_blocks(const float* __restrict__ x, const int* __restrict__ slots, unsigned* __restrict__ cache,
                       const Params p) {
    write_blocks(all_rows(p), slots, cache, folded() * THREADS + thread_id(),
                 [&](unsigned row, unsigned i) { return element_of(x, p, row, i); });
}
