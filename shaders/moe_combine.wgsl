// moe_combine: y[t] = sum_j weights[t, j] * x[t, j] + g[t] * shared[t] + residual[t].
// One block per chunk of a row; each thread strides over the chunk and sums its column in order.
#import grid
#import numeric

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> shared_out: array<f32>;
@group(0) @binding(3) var<storage, read_write> gate: array<f32>;
@group(0) @binding(4) var<storage, read_write> residual: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn moe_combine(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    let t = index / p.n_chunks;
    let first = (index % p.n_chunks) * p.chunk;
    let end = min(first + p.chunk, p.n);
    var factor = 1.0;
    if (GATED) {
        factor = sigmoid(gate[p.gate_off + t * p.gate_s]);
    }
    for (var i = first + thread; i < end; i += THREADS) {
        var sum = 0.0;
        for (var j = 0u; j < p.k; j++) {
            let row = t * p.k + j;
            sum = fma(weights[p.w_off + row], x[p.x_off + row * p.n + i], sum);
        }
        if (SHARED_EXPERT) {
            sum = fma(factor, shared_out[p.shared_off + t * p.shared_s + i], sum);
        }
        if (RESIDUAL) {
            sum += residual[p.residual_off + t * p.residual_s + i];
        }
        y[t * p.n + i] = sum;
    }
}
