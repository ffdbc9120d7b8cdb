// glu: the activation of one tensor times another.
// One block per chunk of a row; each thread strides over the chunk.
#import grid
#import rows
#import activation
#import elementwise
#import repeated

@group(0) @binding(0) var<storage, read_write> gate: array<f32>;
@group(0) @binding(1) var<storage, read_write> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn glu(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let gate_at = a_row(part.row);
    let up_at = b_row(part.row);
    var col = b_first(part.first + thread);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        y[part.row * p.n + i] = activation(gate[gate_at + i]) * up[up_at + col];
        col = b_next(col);
    }
}
