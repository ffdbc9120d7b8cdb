// layer_norm: shifts each row to mean 0 and scales it to variance 1, then applies a weight and a bias.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it.
#import grid
#import rows
#import reduce

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn layer_norm(
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
        sum += x[x_row + i];
    }
    let mean = group_sum(sum, thread, LANES) / f32(p.n);
    var squares = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let d = x[x_row + i] - mean;
        squares += d * d;
    }
    let variance = group_sum(squares, thread, LANES) / f32(p.n);
    // A constant row with eps = 0 gives the bias.
    let scale = select(0.0, inverseSqrt(variance + p.eps), variance + p.eps > 0.0);
    for (var i = lane; i < n; i += LANES) {
        y[row * p.n + i] = (x[x_row + i] - mean) * scale * w[i] + b[i];
    }
}
