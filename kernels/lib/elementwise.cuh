// Which elements a block of an elementwise op owns: `chunk` neighbours of one row.
// For files whose parameters are those of `core/src/ops/elementwise.rs`.
#pragma once
#include "lib/grid.cuh"
#include "lib/rows.cuh"

struct Part {
    unsigned row, first, end;
};

DEVICE Part block_part(const Params& p) {
    unsigned index = folded();
    unsigned row = index / p.n_chunks;
    unsigned first = (index % p.n_chunks) * p.chunk;
    unsigned end = first + p.chunk < p.n ? first + p.chunk : p.n;
    // Blocks beyond the last row own nothing.
    return {row, first, row < p.n_rows ? end : 0u};
}

DEVICE size_t a_row(const Params& p, unsigned row) { return row_offset(row, p.n1, p.a_s0, p.a_s1, p.a_off); }
