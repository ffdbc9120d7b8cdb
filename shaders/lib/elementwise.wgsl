// Which elements a block of an elementwise op owns: `chunk` neighbours of one row.
// Imported by files that have `grid` and `rows` and the parameters of `core/src/ops/elementwise.rs`.

struct Part {
    row: u32,
    first: u32,
    end: u32,
}

fn block_part(block: vec3<u32>, grid: vec3<u32>) -> Part {
    let index = folded(block, grid);
    let row = index / p.n_chunks;
    let first = (index % p.n_chunks) * p.chunk;
    // Blocks beyond the last row own nothing.
    return Part(row, first, select(0u, min(first + p.chunk, p.n), row < p.n_rows));
}

fn a_row(row: u32) -> u32 {
    return row_offset(row, p.n1, p.a_s0, p.a_s1, p.a_off);
}
