// topk_blocks: the k best blocks of each row of scores that its token sees, in ascending order.
// topk_blocks_groups: one thread per group of neighbouring blocks finds its largest key.
// topk_blocks: one block of threads per row chooses the k best groups, compacts their blocks that may be among the k
// best, and chooses among these; everything in index order, so that the first of equals are taken.
#import grid
#import rows
#import order

@group(0) @binding(0) var<storage, read_write> x_data: array<x_Elem>;
@group(0) @binding(1) var<storage, read_write> positions: array<i32>;
// By row: the groups' largest keys; the chosen groups; keys of their blocks; indices of these.
@group(0) @binding(2) var<storage, read_write> work: array<u32>;
@group(0) @binding(3) var<storage, read_write> selection: array<i32>;
@group(0) @binding(4) var<uniform> p: Params;

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> coarse: array<u32, 16>;
var<workgroup> found: vec3<u32>;
var<workgroup> sums: array<vec3<u32>, THREADS>;

// Complete blocks that the token of a row sees.
fn candidates(row: u32) -> u32 {
    let position = positions[p.pos_off + row / p.n_per_token];
    return select(0u, min((u32(position) + 1u) / p.ratio, p.n), position >= 0);
}

// Keys of the scores first .. first + 4 of a row, 0 for what is no candidate.
fn keys_of(x_row: u32, first: u32, n_visible: u32) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x_quad(x_row, first, p.n));
    let keys = vec4<u32>(order_key(bits.x), order_key(bits.y), order_key(bits.z), order_key(bits.w));
    let i = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<u32>(0u), keys, (keys > vec4<u32>(KEY_NEG_INF)) & (i < vec4<u32>(n_visible)));
}

@compute @workgroup_size(THREADS)
fn topk_blocks_groups(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    let row = index / p.n_parts;
    let part = (index % p.n_parts) * THREADS + thread;
    if (row >= p.n_rows) {
        return;
    }
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    let keys = row * p.row_words;
    let n_visible = candidates(row);
    if (p.group == 1u) {
        // Four groups of one.
        let i = 4u * part;
        if (i < p.n_groups) {
            let quad = keys_of(x_row, i, n_visible);
            for (var e = 0u; e < min(4u, p.n_groups - i); e++) {
                work[keys + i + e] = quad[e];
            }
        }
        return;
    }
    if (part >= p.n_groups) {
        return;
    }
    var best = vec4<u32>(0u);
    for (var i = part * p.group; i < min((part + 1u) * p.group, n_visible); i += 4u) {
        best = max(best, keys_of(x_row, i, n_visible));
    }
    work[keys + part] = max(max(best.x, best.y), max(best.z, best.w));
}

// The sum over all threads before this one, and over all of them.
fn sum_before(value: u32, thread: u32) -> vec2<u32> {
    workgroupBarrier();
    sums[thread].x = value;
    for (var n = 1u; n < THREADS; n *= 2u) {
        workgroupBarrier();
        let before = select(0u, sums[max(thread, n) - n].x, thread >= n);
        workgroupBarrier();
        sums[thread].x += before;
    }
    workgroupBarrier();
    return vec2<u32>(sums[thread].x - value, sums[THREADS - 1u].x);
}

// The least and the largest of the threads' keys, and the sum of their counts.
fn range_of(value: vec3<u32>, thread: u32) -> vec3<u32> {
    workgroupBarrier();
    sums[thread] = value;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            let a = sums[thread];
            let b = sums[thread + n];
            sums[thread] = vec3<u32>(min(a.x, b.x), max(a.y, b.y), a.z + b.z);
        }
    }
    workgroupBarrier();
    return sums[0];
}

// What decides whether a key is among the `need` largest of work[first .. end], or among a few more, up to `most`:
// larger than x, or equal to it and among the first y of those. Absent keys, 0, are never.
// A search by histograms: 256 bins over the range of the keys, then over the range of the bin that holds the last of
// those wanted, until that bin does no harm as a whole. Keys of scores are near each other: one round is the rule.
fn bound_of(first: u32, end: u32, need: u32, most: u32, thread: u32) -> vec2<u32> {
    var own = vec3<u32>(0xffffffffu, 0u, 0u);
    for (var i = first + thread; i < end; i += THREADS) {
        let key = work[i];
        if (key > 0u) {
            own = vec3<u32>(min(own.x, key), max(own.y, key), own.z + 1u);
        }
    }
    let range = range_of(own, thread);
    if (range.z <= most) {
        return vec2<u32>(0u, 0u);
    }
    var low = range.x;
    var high = range.y;
    var left = need;
    for (var round = 0u; round < 4u; round++) {
        let bits = 32u - countLeadingZeros(high - low);
        let shift = max(bits, 8u) - 8u;
        for (var i = thread; i < 256u; i += THREADS) {
            atomicStore(&bins[i], 0u);
        }
        workgroupBarrier();
        for (var i = first + thread; i < end; i += THREADS) {
            let key = work[i];
            if (key >= low && key <= high) {
                atomicAdd(&bins[(key - low) >> shift], 1u);
            }
        }
        workgroupBarrier();
        for (var i = thread; i < 16u; i += THREADS) {
            var sum = 0u;
            for (var j = 0u; j < 16u; j++) {
                sum += atomicLoad(&bins[16u * i + j]);
            }
            coarse[i] = sum;
        }
        workgroupBarrier();
        if (thread == 0u) {
            var rest = left;
            var c = 15u;
            while (c > 0u && coarse[c] < rest) {
                rest -= coarse[c];
                c--;
            }
            var bin = 16u * c + 15u;
            while (bin > 16u * c && atomicLoad(&bins[bin]) < rest) {
                rest -= atomicLoad(&bins[bin]);
                bin--;
            }
            found = vec3<u32>(low + (bin << shift), rest, atomicLoad(&bins[bin]));
        }
        let state = workgroupUniformLoad(&found);
        low = state.x;
        left = state.y;
        if (need - left + state.z <= most) {
            return vec2<u32>(low - 1u, 0u);
        }
        if (shift == 0u) {
            return vec2<u32>(low, left);
        }
        high = min(high, low + (1u << shift) - 1u);
    }
    // Not reached: four rounds of eight bits end with a shift of 0.
    return vec2<u32>(low, left);
}

// What becomes of the keys work[first .. end] that the bound lets through, in order: CHOOSE puts their places at
// work[to ..], FINISH their indices into the selection. Returns how many there are.
const CHOOSE = 0u;
const FINISH = 1u;

fn emit(first: u32, end: u32, bound: vec2<u32>, task: u32, ids: u32, to: u32, thread: u32) -> u32 {
    // Each thread owns neighbours, so that threads in order are keys in order.
    let share = (end - first + THREADS - 1u) / THREADS;
    let from_item = min(first + thread * share, end);
    let end_item = min(from_item + share, end);
    var larger = 0u;
    var equal = 0u;
    for (var i = from_item; i < end_item; i++) {
        let key = work[i];
        larger += select(0u, 1u, key > bound.x);
        equal += select(0u, 1u, key == bound.x && key > 0u);
    }
    let equal_before = sum_before(equal, thread).x;
    var equal_kept = min(equal, max(bound.y, equal_before) - equal_before);
    let places = sum_before(larger + equal_kept, thread);
    var place = places.x;
    for (var i = from_item; i < end_item; i++) {
        let key = work[i];
        let is_equal = key == bound.x && equal_kept > 0u;
        if (key > bound.x || is_equal) {
            if (task == CHOOSE) {
                work[to + place] = i - first;
            } else if (place < p.k) {
                var id = i - first;
                if (p.group > 1u) {
                    id = work[ids + id];
                }
                selection[to + place] = i32(id);
            }
            place++;
            equal_kept -= select(0u, 1u, is_equal);
        }
    }
    return places.y;
}

@compute @workgroup_size(THREADS)
fn topk_blocks(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid);
    if (row >= p.n_rows) {
        return;
    }
    let y_row = row_offset(row, p.y_n1, p.y_s0, p.y_s1, p.y_off);
    let keys = row * p.row_words;
    let n_groups = (candidates(row) + p.group - 1u) / p.group;
    var n_found = 0u;
    if (p.group == 1u) {
        let bound = bound_of(keys, keys + n_groups, p.k, p.k, thread);
        n_found = emit(keys, keys + n_groups, bound, FINISH, 0u, y_row, thread);
    } else {
        let chosen = keys + p.n_groups;
        let bound = bound_of(keys, keys + n_groups, p.k, p.n_chosen, thread);
        let n_chosen = emit(keys, keys + n_groups, bound, CHOOSE, 0u, chosen, thread);
        storageBarrier();
        workgroupBarrier();
        // Blocks with keys below the last chosen group's are beaten by k others. Without a bound all count.
        let least = vec4<u32>(max(bound.x + select(0u, 1u, bound.y == 0u), 1u));
        let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
        let n_visible = candidates(row);
        let share = (n_chosen + THREADS - 1u) / THREADS;
        let from_item = min(thread * share, n_chosen);
        let end_item = min(from_item + share, n_chosen);
        let one = vec4<u32>(1u);
        var n_mine = vec4<u32>(0u);
        for (var i = from_item; i < end_item; i++) {
            let id = work[chosen + i] * p.group;
            for (var e = id; e < min(id + p.group, n_visible); e += 4u) {
                n_mine += select(vec4<u32>(0u), one, keys_of(x_row, e, n_visible) >= least);
            }
        }
        let places = sum_before(n_mine.x + n_mine.y + n_mine.z + n_mine.w, thread);
        let kept = chosen + p.n_chosen;
        let ids = kept + p.n_chosen * p.group;
        var place = places.x;
        for (var i = from_item; i < end_item; i++) {
            let id = work[chosen + i] * p.group;
            for (var e = id; e < min(id + p.group, n_visible); e += 4u) {
                let quad = keys_of(x_row, e, n_visible);
                if (any(quad >= least)) {
                    for (var j = 0u; j < 4u; j++) {
                        if (quad[j] >= least.x) {
                            work[kept + place] = quad[j];
                            work[ids + place] = e + j;
                            place++;
                        }
                    }
                }
            }
        }
        storageBarrier();
        workgroupBarrier();
        let last = bound_of(kept, kept + places.y, p.k, p.k, thread);
        n_found = emit(kept, kept + places.y, last, FINISH, ids, y_row, thread);
    }
    for (var i = n_found + thread; i < p.k; i += THREADS) {
        selection[y_row + i] = -1;
    }
}
