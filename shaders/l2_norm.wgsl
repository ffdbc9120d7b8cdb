// l2_norm: divides each row by its Euclidean length. CLAMP: eps is its least value, else it is added to the square.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it.
#import grid
#import rows
#import reduce

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn l2_norm(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    let n = select(0u, p.n, row < p.n_rows);
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    var sum = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let v = x[x_row + i];
        sum += v * v;
    }
    sum = group_sum(sum, thread, LANES);
    let square = select(sum + p.eps, max(sum, p.eps * p.eps), CLAMP);
    // A row of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(square), square > 0.0);
    for (var i = lane; i < n; i += LANES) {
        y[row * p.n + i] = x[x_row + i] * scale;
    }
}
