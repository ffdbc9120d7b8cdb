// add: adds two tensors, the second repeated.
// One block per chunk of a row; each thread strides over the chunk.
#import grid
#import rows
#import elementwise
#import repeated

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn add(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let a_at = a_row(part.row);
    let b_at = b_row(part.row);
    var col = b_first(part.first + thread);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        y[part.row * p.n + i] = a[a_at + i] + b[b_at + col];
        col = b_next(col);
    }
}
