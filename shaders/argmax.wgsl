// argmax: the index of the largest element of each row.
// argmax: one block per slice of a row, whose threads stride over it. argmax_merge: one block per row.
#import grid
#import rows
#import order

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> parts: array<vec2<u32>>; // key, index; by row, by slice
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> p: Params;

var<workgroup> best_of: array<vec2<u32>, THREADS>;

// The larger key, of equals the lower index.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// The best of all threads, for thread 0.
fn block_best(value: vec2<u32>, thread: u32) -> vec2<u32> {
    best_of[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            best_of[thread] = better(best_of[thread], best_of[thread + n]);
        }
    }
    return best_of[thread];
}

@compute @workgroup_size(THREADS)
fn argmax(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    let row = index / p.n_slices;
    if (row >= p.n_rows) {
        return;
    }
    let first = (index % p.n_slices) * p.slice;
    let end = min(first + p.slice, p.n);
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    var best = vec2<u32>(0u, 0xffffffffu);
    for (var i = first + thread; i < end; i += THREADS) {
        let key = order_key(x[x_row + i]);
        best = select(best, vec2<u32>(key, i), key > best.x);
    }
    best = block_best(best, thread);
    if (thread == 0u) {
        parts[index] = best;
    }
}

@compute @workgroup_size(THREADS)
fn argmax_merge(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid);
    if (row >= p.n_rows) {
        return;
    }
    var best = vec2<u32>(0u, 0xffffffffu);
    for (var i = thread; i < p.n_slices; i += THREADS) {
        best = better(best, parts[row * p.n_slices + i]);
    }
    best = block_best(best, thread);
    if (thread == 0u) {
        y[row] = select(best.y, 0u, best.x <= KEY_NEG_INF);
    }
}
