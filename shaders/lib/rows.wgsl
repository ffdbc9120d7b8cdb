// Start of a row, in elements: rows are numbered over two outer axes with strides s0 and s1.
fn row_offset(row: u32, n1: u32, s0: u32, s1: u32, off: u32) -> u32 {
    return off + (row / n1) * s0 + (row % n1) * s1;
}
