// softmax_stats: the largest element of each row and the sum of its exponentials.
// softmax_stats: one block per slice of a row, whose threads stride over it. softmax_stats_merge: one block per row.
#import grid
#import rows
#import numeric

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<vec2<f32>>; // max, sum; by row, by slice
@group(0) @binding(2) var<storage, read_write> y: array<vec2<u32>>;
@group(0) @binding(3) var<uniform> p: Params;

// Nothing yet: the smallest finite number and no terms.
const EMPTY: vec2<f32> = vec2<f32>(-0x1.fffffep+127f, 0.0);

// Elements of a thread that are summed before they join the others.
const RUN = 32u;

var<workgroup> stats_of: array<vec2<f32>, THREADS>;

// Maximum and sum of two sets.
fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let e = exp_neg(-abs(a.x - b.x));
    return vec2<f32>(max(a.x, b.x), select(a.y + b.y * e, a.y * e + b.y, b.x > a.x));
}

// Maximum and sum of all threads, for thread 0.
fn block_join(value: vec2<f32>, thread: u32) -> vec2<f32> {
    stats_of[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            stats_of[thread] = join(stats_of[thread], stats_of[thread + n]);
        }
    }
    return stats_of[thread];
}

@compute @workgroup_size(THREADS)
fn softmax_stats(
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
    var stats = EMPTY;
    // Runs are summed on their own: a thousand equal terms in a row would all be rounded the same way.
    for (var run = first + thread; run < end; run += RUN * THREADS) {
        var part = EMPTY;
        for (var i = run; i < min(run + RUN * THREADS, end); i += THREADS) {
            part = join(part, vec2<f32>(x[x_row + i], 1.0));
        }
        stats = join(stats, part);
    }
    stats = block_join(stats, thread);
    if (thread == 0u) {
        parts[index] = stats;
    }
}

@compute @workgroup_size(THREADS)
fn softmax_stats_merge(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid);
    if (row >= p.n_rows) {
        return;
    }
    var stats = EMPTY;
    for (var i = thread; i < p.n_slices; i += THREADS) {
        stats = join(stats, parts[row * p.n_slices + i]);
    }
    stats = block_join(stats, thread);
    if (thread == 0u) {
        // Without a term above -inf the maximum is -inf, which WGSL cannot write as a number.
        let bits = bitcast<vec2<u32>>(stats);
        y[row] = select(bits, vec2<u32>(0xff800000u, 0u), stats.y == 0.0);
    }
}
