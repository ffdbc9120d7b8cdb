// copy_rows: copies rows of words to other rows of the same table. A block moves one chunk of one row.
#import grid

@group(0) @binding(0) var<storage, read_write> moves: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn copy_rows(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    let at = p.moves_off + 2u * (index / p.n_chunks);
    let source = moves[at];
    let goal = moves[at + 1u];
    if (source < 0 || goal < 0 || u32(source) >= p.n_rows || u32(goal) >= p.n_rows) {
        return;
    }
    let first = (index % p.n_chunks) * p.chunk;
    let end = min(first + p.chunk, p.n);
    for (var i = first + thread; i < end; i += THREADS) {
        y[p.y_off + u32(goal) * p.y_s + i] = y[p.y_off + u32(source) * p.y_s + i];
    }
}
