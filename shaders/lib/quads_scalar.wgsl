// quads_scalar: activations of any row length, stride and offset; what lies behind the end of a row reads as zero.
alias SELF_Elem = f32;

// Elements `i .. i + 4` of the row of `n` elements that starts at element `row`.
fn SELF_quad(row: u32, i: u32, n: u32) -> vec4<f32> {
    let at = row + i;
    if (i + 4u <= n) {
        return vec4<f32>(SELF_data[at], SELF_data[at + 1u], SELF_data[at + 2u], SELF_data[at + 3u]);
    }
    var v = vec4<f32>();
    if (i < n) {
        v.x = SELF_data[at];
    }
    if (i + 1u < n) {
        v.y = SELF_data[at + 1u];
    }
    if (i + 2u < n) {
        v.z = SELF_data[at + 2u];
    }
    return v;
}

// The columns that exist of four, when `left` remain in the row.
fn SELF_mask(m: mat4x4<f32>, left: u32) -> mat4x4<f32> {
    let zero = vec4<f32>();
    return mat4x4<f32>(
        m[0],
        select(zero, m[1], left > 1u),
        select(zero, m[2], left > 2u),
        select(zero, m[3], left > 3u),
    );
}
