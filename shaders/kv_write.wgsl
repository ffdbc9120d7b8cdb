// kv_write: encodes the keys or values of a step into their cells of a paged cache.
// kv_write: plain types. kv_write_blocks: block types.
#import grid
#import rows
#import kv_encode

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> slots: array<i32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
@group(0) @binding(3) var<uniform> p: Params;

fn element(row: u32, i: u32) -> f32 {
    if (i >= p.head_dim) {
        return 0.0;
    }
    return x[row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) + i];
}

fn store(at: u32, word: u32) {
    cache[at] = word;
}

fn all_rows() -> Rows {
    return Rows(p.n_heads, p.head_dim, p.items, p.n_items, p.n_cells, p.row_words, p.narrow, p.slots_off);
}

@compute @workgroup_size(THREADS)
fn kv_write(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    write_words(all_rows(), folded(block, grid) * THREADS + thread);
}

@compute @workgroup_size(THREADS)
fn kv_write_blocks(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    write_blocks(all_rows(), folded(block, grid) * THREADS + thread, thread);
}
