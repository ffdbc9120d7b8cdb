// gated_rms_norm: rms_norm of one tensor times an activation of another, by SILU z * sigmoid(z) or sigmoid(z).
// One block per THREADS / LANES rows; the LANES threads of a row stride over it.
#import grid
#import rows
#import numeric
#import reduce

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> z: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn gated_rms_norm(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid) * (THREADS / LANES) + thread / LANES;
    let lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    let n = select(0u, p.n, row < p.n_rows);
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    let z_row = row_offset(row, p.z_n1, p.z_s0, p.z_s1, p.z_off);
    var sum = 0.0;
    for (var i = lane; i < n; i += LANES) {
        let v = x[x_row + i];
        sum += v * v;
    }
    let mean = group_sum(sum, thread, LANES) / f32(p.n);
    // A row of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(mean + p.eps), mean + p.eps > 0.0);
    for (var i = lane; i < n; i += LANES) {
        let gate = z[z_row + i];
        let act = sigmoid(clamp(gate, -128.0, 128.0)) * select(1.0, gate, SILU);
        y[row * p.n + i] = x[x_row + i] * scale * w[i] * act;
    }
}
