// quads_vec4: activations whose row length, strides and offset are multiples of four, read four at a time.
alias SELF_Elem = vec4<f32>;

// Elements `i .. i + 4` of the row of `n` elements that starts at element `row`.
fn SELF_quad(row: u32, i: u32, n: u32) -> vec4<f32> {
    return SELF_data[(row + i) >> 2u];
}

// The columns that exist of four, when `left` remain in the row.
fn SELF_mask(m: mat4x4<f32>, left: u32) -> mat4x4<f32> {
    return m;
}
