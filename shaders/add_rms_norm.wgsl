// add_rms_norm: adds two tensors and normalises the sum; both results are kept.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it.
#import grid
#import rows
#import reduce

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> sum: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn add_rms_norm(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    let n = select(0u, p.n, row < p.n_rows);
    let a_row = row_offset(row, p.a_n1, p.a_s0, p.a_s1, p.a_off);
    let b_row = row_offset(row, p.b_n1, p.b_s0, p.b_s1, p.b_off);
    let y_row = row * p.n;
    var squares = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let v = a[a_row + i] + b[b_row + i];
        sum[y_row + i] = v;
        squares += v * v;
    }
    let mean = group_sum(squares, thread, LANES) / f32(p.n);
    // A row of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(mean + p.eps), mean + p.eps > 0.0);
    // Each thread reads back what it wrote itself.
    for (var i = lane; i < n; i += LANES) {
        y[y_row + i] = sum[y_row + i] * scale * w[i];
    }
}
