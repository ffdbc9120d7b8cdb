// top_k_logits: the k largest elements of each row with their indices, largest first.
// top_k_logits_groups: one thread per group of neighbouring elements finds its largest key.
// top_k_logits: one block per row selects the k best groups, then the k best elements of these; both in index order,
// so that the first of equals are taken. At last each element counts those before it.
#import grid
#import rows
#import order

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
// Keys, by row: the groups' largest, then the elements of the selected groups.
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;
@group(0) @binding(4) var<uniform> p: Params;

const MAX_K: u32 = 1024u;

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> coarse: array<u32, 16>;
var<workgroup> found: vec2<u32>;
var<workgroup> sums: array<u32, THREADS>;
var<workgroup> groups: array<u32, MAX_K>;
var<workgroup> kept_key: array<u32, MAX_K>;
var<workgroup> kept_id: array<u32, MAX_K>;

@compute @workgroup_size(THREADS)
fn top_k_logits_groups(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    let row = index / p.n_blocks;
    let group = (index % p.n_blocks) * THREADS + thread;
    if (row >= p.n_rows || group >= p.n_groups) {
        return;
    }
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    let end = min((group + 1u) * p.group, p.n);
    var best = 0u;
    for (var i = group * p.group; i < end; i++) {
        best = max(best, order_key(x[x_row + i]));
    }
    work[row * (p.n_groups + p.n_candidates) + group] = best;
}

// The sum over all threads before this one.
fn sum_before(value: u32, thread: u32) -> u32 {
    workgroupBarrier();
    sums[thread] = value;
    for (var n = 1u; n < THREADS; n *= 2u) {
        workgroupBarrier();
        let before = select(0u, sums[max(thread, n) - n], thread >= n);
        workgroupBarrier();
        sums[thread] += before;
    }
    return sums[thread] - value;
}

// The `need`-th largest of the keys work[first .. end], and how many keys equal to it are among the `need` largest.
// A radix search: eight bits a round, from the top.
fn nth_key(first: u32, end: u32, need: u32, thread: u32) -> vec2<u32> {
    var state = vec2<u32>(0u, need);
    var mask = 0u;
    for (var digit = 0u; digit < 4u; digit++) {
        let shift = 24u - 8u * digit;
        for (var i = thread; i < 256u; i += THREADS) {
            atomicStore(&bins[i], 0u);
        }
        workgroupBarrier();
        for (var i = first + thread; i < end; i += THREADS) {
            let key = work[i];
            if ((key & mask) == state.x) {
                atomicAdd(&bins[(key >> shift) & 255u], 1u);
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
            var left = state.y;
            var c = 15u;
            while (c > 0u && coarse[c] < left) {
                left -= coarse[c];
                c--;
            }
            var bin = 16u * c + 15u;
            while (bin > 16u * c && atomicLoad(&bins[bin]) < left) {
                left -= atomicLoad(&bins[bin]);
                bin--;
            }
            found = vec2<u32>(state.x | (bin << shift), left);
        }
        workgroupBarrier();
        state = found;
        mask |= 255u << shift;
    }
    return state;
}

@compute @workgroup_size(THREADS)
fn top_k_logits(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = folded(block, grid);
    if (row >= p.n_rows) {
        return;
    }
    let x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    let row_work = row * (p.n_groups + p.n_candidates);
    for (var stage = 0u; stage < 2u; stage++) {
        let first = row_work + stage * p.n_groups;
        let end = first + select(p.n_groups, p.n_candidates, stage == 1u);
        let need = select(min(p.k, p.n_groups), p.k, stage == 1u);
        if (stage == 1u) {
            for (var i = thread; i < p.n_candidates; i += THREADS) {
                let id = groups[i / p.group] * p.group + i % p.group;
                // 0: no element; there are k others.
                work[first + i] = select(0u, order_key(x[x_row + min(id, p.n - 1u)]), id < p.n);
            }
            storageBarrier();
            workgroupBarrier();
        }
        let nth = nth_key(first, end, need, thread);
        // Each thread now owns neighbours, so that threads in order are elements in order.
        let share = (end - first + THREADS - 1u) / THREADS;
        let from_item = min(first + thread * share, end);
        let end_item = min(from_item + share, end);
        var larger = 0u;
        var equal = 0u;
        for (var i = from_item; i < end_item; i++) {
            larger += select(0u, 1u, work[i] > nth.x);
            equal += select(0u, 1u, work[i] == nth.x);
        }
        let equal_before = sum_before(equal, thread);
        var equal_kept = min(equal, max(nth.y, equal_before) - equal_before);
        var place = sum_before(larger + equal_kept, thread);
        for (var i = from_item; i < end_item; i++) {
            let key = work[i];
            let is_equal = key == nth.x && equal_kept > 0u;
            if ((key > nth.x || is_equal) && place < MAX_K) {
                let item = i - first;
                if (stage == 0u) {
                    groups[place] = item;
                } else {
                    kept_key[place] = key;
                    kept_id[place] = groups[item / p.group] * p.group + item % p.group;
                }
                place++;
                equal_kept -= select(0u, 1u, is_equal);
            }
        }
        workgroupBarrier();
    }
    for (var i = thread; i < p.k; i += THREADS) {
        let key = kept_key[i];
        var rank = 0u;
        for (var j = 0u; j < p.k; j++) {
            let other = kept_key[j];
            rank += select(0u, 1u, other > key || (other == key && j < i));
        }
        ids[row * p.k + rank] = kept_id[i];
        values[row * p.k + rank] = x[x_row + kept_id[i]];
    }
}
