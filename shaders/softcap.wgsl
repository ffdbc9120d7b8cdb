// softcap: bounds values smoothly.
// One block per chunk of a row; each thread strides over the chunk.
#import grid
#import rows
#import numeric
#import elementwise

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn softcap(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let x_at = a_row(part.row);
    for (var i = part.first + thread; i < part.end; i += THREADS) {
        y[part.row * p.n + i] = p.cap * tanh_safe(x[x_at + i] * p.inv_cap);
    }
}
