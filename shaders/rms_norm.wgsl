// rms_norm: divides each row by its root mean square, then scales by a weight.
// One block per row; each thread strides over the row.
#import grid
#import rows
#import reduce

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn rms_norm(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid);
    if (row >= p.n_rows) {
        return;
    }
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    var sum = 0.0;
    for (var i = thread; i < p.n; i += THREADS) {
        let v = x[x_row + i];
        sum += v * v;
    }
    let mean = block_sum(sum, thread) / f32(p.n);
    // A row of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(mean + p.eps), mean + p.eps > 0.0);
    for (var i = thread; i < p.n; i += THREADS) {
        y[row * p.n + i] = x[x_row + i] * scale * w[i];
    }
}
