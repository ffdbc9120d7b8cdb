// spread_shuffle: the eight threads of a block are one warp; thread `k` loads quad `k` of a step of eight, the others get
// it by a shuffle. A CPU loads lane by lane, but shuffles a vector in one instruction.
fn SELF_own(row: u32, column: u32, thread: u32) -> vec4<f32> {
    let i = column + 4u * thread;
    if (i >= p.n) {
        return vec4<f32>();
    }
    return x_quad(row, i, p.n);
}

// Elements `i .. i + 4` of a row, quad `q` of the step.
fn SELF_quad(own: vec4<f32>, row: u32, i: u32, q: u32) -> vec4<f32> {
    return subgroupShuffle(own, q);
}
