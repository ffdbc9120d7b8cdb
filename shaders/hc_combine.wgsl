// hc_combine: adds a block's result to every stream of a hyper-connected residual.
// One block per chunk of a token's channels; each thread strides over the chunk, so the result is read once.
#import grid
#import rows
#import numeric
#import elementwise
#import hc_weight

@group(0) @binding(0) var<storage, read_write> r: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> inject: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn hc_combine(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let part = block_part(block, grid);
    let inject_at = row_offset(part.row, p.inject_n1, p.inject_s0, p.inject_s1, p.inject_off);
    for (var c = 0u; c < p.n1; c++) {
        let row = part.row * p.n1 + c;
        let r_at = a_row(row);
        for (var i = part.first + thread; i < part.end; i += THREADS) {
            let weight = hc_weight(inject[inject_at + c], p.scale);
            y[row * p.n + i] = r[r_at + i] + weight * x[part.row * p.n + i];
        }
    }
}
