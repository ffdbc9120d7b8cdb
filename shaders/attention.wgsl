// attention: online softmax over the visible cells of a paged cache.
// A block owns 4 query rows, (token, head) pairs of one KV head, and every n_splits-th chunk of cells. In turns: each
// thread scores two cells for the 4 rows; the block updates the running maxima; each thread adds weighted values to
// its 4 channels of the 4 rows (with ONE_GROUP over all cells, else the threads also share the cells). A tile may
// hold tokens of several sequences: it visits the cells of each in turn, and rows ignore what is not theirs.
// attention_merge: joins the parts of the splits in order; a thread owns 4 channels of a row.
// A thread reads a whole key, so neighbours read rows apart: the caches of a GPU absorb that at head sizes up to 128.
#import grid
#import numeric

@group(0) @binding(0) var<storage, read_write> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> k_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> v_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> page_table: array<i32>;
@group(0) @binding(4) var<storage, read_write> seq_rows: array<i32>;
@group(0) @binding(5) var<storage, read_write> positions: array<i32>;
// A record a row and split: the channels, and with several splits (maximum, sum, 0, 0).
@group(0) @binding(6) var<storage, read_write> records: array<vec4<f32>>;
@group(0) @binding(7) var<uniform> p: Params;

@group(0) @binding(0) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> merged: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> merge_p: Params;

const NONE = 0xffffffffu;
const PAGE = 64u;
const PAIRS = CHUNK / 2u;

var<workgroup> queries: array<vec4<f32>, Q_LEN>; // channel -> 4 rows
var<workgroup> weights: array<vec4<f32>, CHUNK>; // cell -> 4 rows
var<workgroup> cells: array<u32, CHUNK>; // cell -> its row in the caches, or NONE
var<workgroup> shared4: array<vec4<f32>, THREADS>;
var<workgroup> tops: array<vec4<f32>, 8>;

// The maximum over the block, in two steps: few barriers, which are dear in software, and few serial reads.
// The caller has a barrier between two calls.
fn block_max4(value: vec4<f32>, thread: u32) -> vec4<f32> {
    shared4[thread] = value;
    workgroupBarrier();
    if (thread < 8u) {
        var top = shared4[thread];
        for (var i = thread + 8u; i < THREADS; i += 8u) {
            top = max(top, shared4[i]);
        }
        tops[thread] = top;
    }
    workgroupBarrier();
    var top = tops[0];
    for (var i = 1u; i < 8u; i += 1u) {
        top = max(top, tops[i]);
    }
    return top;
}

// Sum over the groups of threads that share a quad of channels, in order.
fn group_sum4(value: vec4<f32>, thread: u32, quad: u32, n_groups: u32) -> vec4<f32> {
    if (ONE_GROUP) {
        return value;
    }
    workgroupBarrier();
    shared4[thread] = value;
    workgroupBarrier();
    var sum = shared4[quad];
    for (var g = 1u; g < n_groups; g += 1u) {
        sum += shared4[g * p.v_quads + quad];
    }
    return sum;
}

fn query(token: u32, head: u32, channel: u32) -> f32 {
    if (token >= p.n_tokens) {
        return 0.0;
    }
    return q[p.q_off + token * p.q_s0 + head * p.q_s1 + channel];
}

// Row of the page table, negative for padding.
fn sequence(token: u32) -> i32 {
    if (token >= p.n_tokens) {
        return -1;
    }
    let row = seq_rows[p.seq_off + token];
    return select(row, -1, row >= i32(p.n_seq_rows));
}

fn position(token: u32) -> i32 {
    if (token >= p.n_tokens) {
        return -1;
    }
    return clamp(positions[p.pos_off + token], -1, 0x3fffffff);
}

// Where cell j of a sequence lies, in rows of the caches.
fn cell_row(seq: u32, kv_head: u32, j: u32) -> u32 {
    let ordinal = j / PAGE;
    if (ordinal >= p.max_pages) {
        return NONE;
    }
    let page = page_table[p.table_off + seq * p.max_pages + ordinal];
    if (page < 0 || u32(page) >= p.n_pages) {
        return NONE;
    }
    return (u32(page) * p.n_kv_heads + kv_head) * PAGE + j % PAGE;
}

fn logits(products: vec4<f32>) -> vec4<f32> {
    let s = products * p.scale;
    if (p.softcap > 0.0) {
        return softcap4(s, p.softcap);
    }
    return s;
}

fn store(token: u32, head: u32, split: u32, quad: u32, sums: vec4<f32>, top: f32, total: f32) {
    if (token >= p.n_tokens) {
        return;
    }
    let at = ((token * p.n_heads + head) * p.n_splits + split) * p.record;
    if (p.n_splits == 1u) {
        var o = vec4<f32>(0.0);
        if (total > 0.0) {
            o = sums / total;
        }
        records[at + quad] = o;
        return;
    }
    records[at + quad] = sums;
    if (quad == 0u) {
        records[at + p.v_quads] = vec4<f32>(top, total, 0.0, 0.0);
    }
}

@compute @workgroup_size(THREADS)
fn attention(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    let split = index % p.n_splits;
    let kv_head = (index / p.n_splits) % p.n_kv_heads;
    let tile = index / (p.n_splits * p.n_kv_heads);
    let rows = vec4<u32>(4u * tile) + vec4<u32>(0u, 1u, 2u, 3u);
    let tokens = rows / p.group;
    let heads = vec4<u32>(kv_head * p.group) + rows % p.group;
    let seqs = vec4<i32>(
        sequence(tokens.x), sequence(tokens.y), sequence(tokens.z), sequence(tokens.w),
    );
    let last = vec4<i32>(
        position(tokens.x), position(tokens.y), position(tokens.z), position(tokens.w),
    );
    var first = vec4<i32>(0);
    if (p.window > 0u) {
        first = max(first, last - vec4<i32>(i32(p.window) - 1));
    }
    for (var c = thread; c < p.dk; c += THREADS) {
        queries[c] = vec4<f32>(
            query(tokens.x, heads.x, c),
            query(tokens.y, heads.y, c),
            query(tokens.z, heads.z, c),
            query(tokens.w, heads.w, c),
        );
    }
    workgroupBarrier();

    // What this thread owns of the values.
    let quad = select(thread % p.v_quads, thread, ONE_GROUP);
    let group = select(thread / p.v_quads, 0u, ONE_GROUP);
    let n_groups = select(THREADS / p.v_quads, 1u, ONE_GROUP);
    let owns = quad < p.v_quads && group < n_groups;

    var top = vec4<f32>(NEG_BIG);
    var total = vec4<f32>(0.0);
    var sum_x = vec4<f32>(0.0);
    var sum_y = vec4<f32>(0.0);
    var sum_z = vec4<f32>(0.0);
    var sum_w = vec4<f32>(0.0);
    for (var r = 0u; r < 4u; r += 1u) {
        let seq = seqs[r];
        let seen = (r > 0u && seqs.x == seq) || (r > 1u && seqs.y == seq) || (r > 2u && seqs.z == seq);
        if (seq < 0 || seen) {
            continue;
        }
        let mine = seqs == vec4<i32>(seq);
        let firsts = select(vec4<i32>(0x7fffffff), first, mine);
        let ends = select(vec4<i32>(0), last + vec4<i32>(1), mine);
        let start = u32(min(min(firsts.x, firsts.y), min(firsts.z, firsts.w)));
        let end = min(u32(max(max(ends.x, ends.y), max(ends.z, ends.w))), p.max_pages * PAGE);
        // Chunk c belongs to split c mod n_splits: boundaries do not depend on the rows of the tile.
        var chunk = start / CHUNK;
        chunk += (split + p.n_splits - chunk % p.n_splits) % p.n_splits;
        for (; chunk * CHUNK < end; chunk += p.n_splits) {
            let base = chunk * CHUNK;

            // Scores of two neighbouring cells, so that a chunk that is not full leaves whole warps idle.
            var row_a = NONE;
            var row_b = NONE;
            var sees_a = vec4<bool>(false);
            var sees_b = vec4<bool>(false);
            if (thread < PAIRS) {
                let j = base + 2u * thread;
                let a = vec4<i32>(i32(j));
                let b = a + vec4<i32>(1);
                sees_a = mine & (a <= last) & (a >= first);
                sees_b = mine & (b <= last) & (b >= first);
                if (any(sees_a | sees_b)) {
                    // Both lie in one page.
                    let row = cell_row(u32(seq), kv_head, j);
                    sees_a = sees_a & vec4<bool>(row != NONE);
                    sees_b = sees_b & vec4<bool>(row != NONE);
                    row_a = select(NONE, row, any(sees_a));
                    row_b = select(NONE, row + 1u, any(sees_b));
                }
            }
            var products_a = vec4<f32>(0.0);
            var products_b = vec4<f32>(0.0);
            if (row_a != NONE || row_b != NONE) {
                // Where only one of the cells is visible, both stand for it.
                let words_a = select(row_a, row_b, row_a == NONE) * p.k_words;
                let words_b = select(row_b, row_a, row_b == NONE) * p.k_words;
                for (var c = 0u; c < p.dk; c += 4u) {
                    let key_a = k_quad(words_a, c / 4u);
                    let key_b = k_quad(words_b, c / 4u);
                    let q0 = queries[c];
                    let q1 = queries[c + 1u];
                    let q2 = queries[c + 2u];
                    let q3 = queries[c + 3u];
                    products_a += key_a.x * q0 + key_a.y * q1 + key_a.z * q2 + key_a.w * q3;
                    products_b += key_b.x * q0 + key_b.y * q1 + key_b.z * q2 + key_b.w * q3;
                }
            }
            let score_a = select(vec4<f32>(NEG_BIG), logits(products_a), sees_a);
            let score_b = select(vec4<f32>(NEG_BIG), logits(products_b), sees_b);

            // Softmax, relative to the highest score so far. The barriers of block_max4 also end the turn before.
            let new_top = max(top, block_max4(max(score_a, score_b), thread));
            let fade = select(exp_neg4(top - new_top), vec4<f32>(1.0), top == new_top);
            let weight_a = select(vec4<f32>(0.0), exp_neg4(score_a - new_top), sees_a);
            let weight_b = select(vec4<f32>(0.0), exp_neg4(score_b - new_top), sees_b);
            top = new_top;
            if (thread < PAIRS) {
                weights[2u * thread] = weight_a;
                weights[2u * thread + 1u] = weight_b;
                cells[2u * thread] = row_a;
                cells[2u * thread + 1u] = row_b;
            }
            workgroupBarrier();

            // Values. A cell that a row does not see must not reach it, even as 0 * NaN. Each chunk has a sum of its own,
            // so that rounding does not grow with the number of cells.
            var chunk_total = vec4<f32>(0.0);
            var chunk_x = vec4<f32>(0.0);
            var chunk_y = vec4<f32>(0.0);
            var chunk_z = vec4<f32>(0.0);
            var chunk_w = vec4<f32>(0.0);
            let n_cells = select(0u, min(CHUNK, end - base), owns);
            for (var c = group; c < n_cells; c += n_groups) {
                let row = cells[c];
                if (row != NONE) {
                    let w = weights[c];
                    chunk_total += w;
                    let value = v_quad(row * p.v_words, quad);
                    chunk_x = select(chunk_x, chunk_x + w.x * value, w.x != 0.0);
                    chunk_y = select(chunk_y, chunk_y + w.y * value, w.y != 0.0);
                    chunk_z = select(chunk_z, chunk_z + w.z * value, w.z != 0.0);
                    chunk_w = select(chunk_w, chunk_w + w.w * value, w.w != 0.0);
                }
            }
            total = total * fade + chunk_total;
            sum_x = sum_x * fade.x + chunk_x;
            sum_y = sum_y * fade.y + chunk_y;
            sum_z = sum_z * fade.z + chunk_z;
            sum_w = sum_w * fade.w + chunk_w;
        }
    }

    // The total first, then the rows.
    for (var r = 0u; r < 5u; r += 1u) {
        var own = total;
        if (r == 1u) {
            own = sum_x;
        } else if (r == 2u) {
            own = sum_y;
        } else if (r == 3u) {
            own = sum_z;
        } else if (r == 4u) {
            own = sum_w;
        }
        let sum = group_sum4(own, thread, quad, n_groups);
        if (r == 0u) {
            total = sum;
        } else if (owns && group == 0u) {
            let i = r - 1u;
            store(tokens[i], heads[i], split, quad, sum, top[i], total[i]);
        }
    }
}

@compute @workgroup_size(THREADS)
fn attention_merge(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid) * THREADS + thread;
    if (index >= merge_p.n_merged) {
        return;
    }
    let row = index / merge_p.v_quads;
    let quad = index % merge_p.v_quads;
    let begin = row * merge_p.n_splits * merge_p.record;
    let end = begin + merge_p.n_splits * merge_p.record;
    var top = NEG_BIG;
    for (var at = begin; at < end; at += merge_p.record) {
        top = max(top, parts[at + merge_p.v_quads].x);
    }
    var total = 0.0;
    var sums = vec4<f32>(0.0);
    for (var at = begin; at < end; at += merge_p.record) {
        let part = parts[at + merge_p.v_quads];
        // A part that saw nothing has a sum of 0.
        if (part.y > 0.0) {
            let weight = exp_neg(part.x - top);
            total += weight * part.y;
            sums += weight * parts[at + quad];
        }
    }
    var o = vec4<f32>(0.0);
    if (total > 0.0) {
        o = sums / total;
    }
    merged[row * merge_p.v_quads + quad] = o;
}
