// Where the elements of the second operand are, which repeats on every axis.

fn b_row(row: u32) -> u32 {
    return p.b_off + ((row / p.n1) % p.b_m0) * p.b_s0 + ((row % p.n1) % p.b_m1) * p.b_s1;
}

// The column of element `i` of a row.
fn b_first(i: u32) -> u32 {
    return i % p.b_n;
}

// The column THREADS elements later.
fn b_next(col: u32) -> u32 {
    let next = col + p.b_step;
    return select(next, next - p.b_n, next >= p.b_n);
}
