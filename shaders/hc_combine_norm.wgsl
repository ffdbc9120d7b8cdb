// hc_combine_norm: adds a result to the streams of a residual and normalises each; both are kept.
// One block per THREADS / LANES rows, a row being one stream of one token; the LANES threads of a row stride over it.
#import grid
#import rows
#import numeric
#import reduce
#import hc_weight

@group(0) @binding(0) var<storage, read_write> r: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> inject: array<f32>;
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read_write> sum: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn hc_combine_norm(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    let n = select(0u, p.n, row < p.n_rows);
    let token = row / p.n_streams;
    let stream = row % p.n_streams;
    let r_row = row_offset(row, p.r_n1, p.r_s0, p.r_s1, p.r_off);
    let x_row = token * p.n;
    let y_row = row * p.n;
    var weight = 0.0;
    if (n > 0u) {
        let at = row_offset(token, p.inject_n1, p.inject_s0, p.inject_s1, p.inject_off) + stream;
        weight = hc_weight(inject[at], p.scale);
    }
    var squares = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let v = r[r_row + i] + weight * x[x_row + i];
        sum[y_row + i] = v;
        squares += v * v;
    }
    let mean = group_sum(squares, thread, LANES) / f32(p.n);
    // A row of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(mean + p.eps), mean + p.eps > 0.0);
    // Each thread reads back what it wrote itself.
    for (var i = lane; i < n; i += LANES) {
        y[y_row + i] = sum[y_row + i] * scale * w[stream * p.n + i];
    }
}
