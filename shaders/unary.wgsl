// unary: a function of each element.
// One block per chunk of a row; each thread strides over the chunk. KIND is a constant, so one case remains.
#import grid
#import rows
#import numeric
#import elementwise

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn unary(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let x_at = a_row(part.row);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        let v = x[x_at + i];
        // The argument is clamped where the factor has long reached its limit.
        let s = sigmoid(clamp(v, -128.0, 128.0));
        y[part.row * p.n + i] = select(s, v * s, KIND == 0u);
    }
}
