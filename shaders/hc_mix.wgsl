// hc_mix: the gated mean of the streams of a hyper-connected residual.
// One block per chunk of a token's channels; each thread strides over the chunk and sums the streams in order.
#import grid
#import rows
#import numeric
#import elementwise

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn hc_mix(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        var sum = 0.0;
        for (var c = 0u; c < p.n1; c++) {
            let row = part.row * p.n1 + c;
            // The argument is clamped where the factor has long reached its limit.
            sum += x[a_row(row) + i] * sigmoid(clamp(gate[row * p.n + i], -128.0, 128.0));
        }
        y[part.row * p.n + i] = sum * p.weight;
    }
}
