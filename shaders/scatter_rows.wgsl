// scatter_rows: copies rows of words to listed rows of a table. A thread moves one word.
#import grid

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> idx: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn scatter_rows(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let item = folded(block, grid) * THREADS + thread;
    if (item >= p.n_items) {
        return;
    }
    let row = item / p.n;
    let target_row = idx[p.idx_off + row];
    if (target_row < 0 || u32(target_row) >= p.n_rows) {
        return;
    }
    let i = item % p.n;
    y[p.y_off + u32(target_row) * p.y_s + i] = x[p.x_off + row * p.x_s + i];
}
