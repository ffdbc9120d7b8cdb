// spread_load: every thread loads the activations it needs.
fn SELF_own(row: u32, column: u32, thread: u32) -> vec4<f32> {
    return vec4<f32>();
}

// Elements `i .. i + 4` of a row, quad `q` of the step.
fn SELF_quad(own: vec4<f32>, row: u32, i: u32, q: u32) -> vec4<f32> {
    return x_quad(row, i, p.n);
}
