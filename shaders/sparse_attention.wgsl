// sparse_attention: online softmax over the selected cells of a paged cache.
// A block owns a token, a KV head, up to h_ROWS of its query heads, and every n_splits-th chunk of the token's list:
// members of the entries, then the tail. In turns: each thread scores two cells for all rows, so that a cell is decoded
// once for them; the block updates the running maxima; each thread adds weighted values to its 4 channels of all rows
// (with ONE_GROUP over all cells, else the threads also share the cells).
// sparse_attention_merge: joins the parts of the splits in order; a thread owns 4 channels of a row.
#import grid
#import numeric

@group(0) @binding(0) var<storage, read_write> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> k_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> v_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> page_table: array<i32>;
@group(0) @binding(4) var<storage, read_write> seq_rows: array<i32>;
@group(0) @binding(5) var<storage, read_write> positions: array<i32>;
@group(0) @binding(6) var<storage, read_write> selection: array<i32>;
// A record a row and split: the channels, and with several splits (maximum, sum, 0, 0).
@group(0) @binding(7) var<storage, read_write> records: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> p: Params;

@group(0) @binding(0) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> merged: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> merge_p: Params;

const NONE = 0xffffffffu;
const PAGE = 64u;
const PAIRS = CHUNK / 2u;

var<workgroup> queries: array<h_Rows, Q_LEN>; // by channel
var<workgroup> weights: array<h_Rows, CHUNK>; // by cell
var<workgroup> cells: array<u32, CHUNK>; // by cell: its row in the caches, or NONE
var<workgroup> maxima: array<h_Rows, THREADS>;
var<workgroup> tops: array<h_Rows, 8>;
var<workgroup> shared4: array<vec4<f32>, SUM_LEN>;

// The maxima over the block, in two steps: few barriers, which are dear in software, and few serial reads.
// The caller has a barrier between two calls.
fn block_max(value: h_Rows, thread: u32) -> h_Rows {
    maxima[thread] = value;
    workgroupBarrier();
    if (thread < 8u) {
        var top = maxima[thread];
        for (var i = thread + 8u; i < THREADS; i += 8u) {
            top = h_max(top, maxima[i]);
        }
        tops[thread] = top;
    }
    workgroupBarrier();
    var top = tops[0];
    for (var i = 1u; i < 8u; i += 1u) {
        top = h_max(top, tops[i]);
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

// Where cell c of a token's list lies, in rows of the caches; `end` is the token's position + 1.
fn cell_row(list: u32, seq: u32, kv_head: u32, c: u32, end: u32) -> u32 {
    let entry = c / p.ratio;
    let whole = end / p.ratio;
    // Behind the entries comes the block that the token leaves incomplete.
    var block = whole;
    if (entry < p.n_entries) {
        let e = selection[list + entry];
        let limit = select((end + p.ratio - 1u) / p.ratio, whole, p.tail != 0u);
        if (e < 0 || u32(e) >= limit) {
            return NONE;
        }
        block = u32(e);
    }
    let j = block * p.ratio + c % p.ratio;
    let ordinal = j / PAGE;
    if (c >= p.n_cells || j >= end || ordinal >= p.max_pages) {
        return NONE;
    }
    let page = page_table[p.table_off + seq * p.max_pages + ordinal];
    if (page < 0 || u32(page) >= p.n_pages) {
        return NONE;
    }
    return (u32(page) * p.n_kv_heads + kv_head) * PAGE + j % PAGE;
}

@compute @workgroup_size(THREADS)
fn sparse_attention(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    // Blocks with the same cells are neighbours.
    let split = index % p.n_splits;
    let tile = (index / p.n_splits) % p.n_tiles;
    let kv_head = (index / (p.n_splits * p.n_tiles)) % p.n_kv_heads;
    let token = index / (p.n_splits * p.n_tiles * p.n_kv_heads);
    let first_head = kv_head * p.group + tile * h_ROWS;
    let n_rows = min(h_ROWS, p.group - tile * h_ROWS);

    let seq = seq_rows[p.seq_off + token];
    let position = min(positions[p.pos_off + token], 0x3fffffff);
    let exists = seq >= 0 && seq < i32(p.n_seq_rows) && position >= 0;
    let end = select(0u, u32(position + 1), exists);
    let n_cells = select(0u, p.n_cells, exists);
    let list = p.sel_off + token * p.sel_s0 + kv_head * p.sel_s1;

    let q_row = p.q_off + token * p.q_s0 + first_head * p.q_s1;
    for (var c = thread; c < p.dk; c += THREADS) {
        var rows = h_all(0.0);
        for (var four = 0u; four < h_FOURS; four += 1u) {
            var v = vec4<f32>(0.0);
            let at = q_row + 4u * four * p.q_s1 + c;
            if (4u * four < n_rows) {
                v.x = q[at];
            }
            if (4u * four + 1u < n_rows) {
                v.y = q[at + p.q_s1];
            }
            if (4u * four + 2u < n_rows) {
                v.z = q[at + 2u * p.q_s1];
            }
            if (4u * four + 3u < n_rows) {
                v.w = q[at + 3u * p.q_s1];
            }
            rows = h_with(rows, four, v);
        }
        queries[c] = rows;
    }
    workgroupBarrier();

    // What this thread owns of the values.
    let quad = select(thread % p.v_quads, thread, ONE_GROUP);
    let group = select(thread / p.v_quads, 0u, ONE_GROUP);
    let n_groups = select(THREADS / p.v_quads, 1u, ONE_GROUP);
    let owns = quad < p.v_quads && group < n_groups;

    var top = h_all(NEG_BIG);
    var total = h_all(0.0);
    var sums = h_Sums();
    for (var base = split * CHUNK; base < n_cells; base += p.n_splits * CHUNK) {
        // Scores of two neighbouring cells, so that a chunk that is not full leaves whole warps idle.
        var row_a = NONE;
        var row_b = NONE;
        if (thread < PAIRS) {
            row_a = cell_row(list, u32(seq), kv_head, base + 2u * thread, end);
            row_b = cell_row(list, u32(seq), kv_head, base + 2u * thread + 1u, end);
        }
        var products_a = h_all(0.0);
        var products_b = h_all(0.0);
        if (row_a != NONE || row_b != NONE) {
            // Where only one of the cells is visible, both stand for it.
            let words_a = select(row_a, row_b, row_a == NONE) * p.k_words;
            let words_b = select(row_b, row_a, row_b == NONE) * p.k_words;
            for (var c = 0u; c < p.dk; c += 4u) {
                let key_a = k_quad(words_a, c / 4u);
                let key_b = k_quad(words_b, c / 4u);
                let q0 = queries[c];
                products_a = h_axpy(products_a, key_a.x, q0);
                products_b = h_axpy(products_b, key_b.x, q0);
                let q1 = queries[c + 1u];
                products_a = h_axpy(products_a, key_a.y, q1);
                products_b = h_axpy(products_b, key_b.y, q1);
                let q2 = queries[c + 2u];
                products_a = h_axpy(products_a, key_a.z, q2);
                products_b = h_axpy(products_b, key_b.z, q2);
                let q3 = queries[c + 3u];
                products_a = h_axpy(products_a, key_a.w, q3);
                products_b = h_axpy(products_b, key_b.w, q3);
            }
        }
        let score_a = h_keep(h_logits(products_a, p.scale, p.softcap), row_a != NONE, NEG_BIG);
        let score_b = h_keep(h_logits(products_b, p.scale, p.softcap), row_b != NONE, NEG_BIG);

        // Softmax, relative to the highest score so far. The barriers of block_max also end the turn before.
        let new_top = h_max(top, block_max(h_max(score_a, score_b), thread));
        let fade = h_exp(top, new_top);
        top = new_top;
        if (thread < PAIRS) {
            weights[2u * thread] = h_keep(h_exp(score_a, top), row_a != NONE, 0.0);
            weights[2u * thread + 1u] = h_keep(h_exp(score_b, top), row_b != NONE, 0.0);
            cells[2u * thread] = row_a;
            cells[2u * thread + 1u] = row_b;
        }
        workgroupBarrier();

        total = h_mul(total, fade);
        sums = h_faded(sums, fade);
        let n_turn = select(0u, min(CHUNK, n_cells - base), owns);
        for (var c = group; c < n_turn; c += n_groups) {
            let row = cells[c];
            if (row != NONE) {
                let w = weights[c];
                total = h_add(total, w);
                sums = h_gather(sums, w, v_quad(row * p.v_words, quad));
            }
        }
    }

    // The totals first, then the rows.
    for (var four = 0u; four < h_FOURS; four += 1u) {
        total = h_with(total, four, group_sum4(h_four(total, four), thread, quad, n_groups));
    }
    for (var r = 0u; r < h_ROWS; r += 1u) {
        let sum = group_sum4(h_row(sums, r), thread, quad, n_groups);
        if (owns && group == 0u && r < n_rows) {
            let total4 = h_four(total, r / 4u);
            let row_total = total4[r % 4u];
            let at = ((token * p.n_heads + first_head + r) * p.n_splits + split) * p.record;
            if (p.n_splits == 1u) {
                records[at + quad] = select(vec4<f32>(0.0), sum / max(row_total, 1e-30), row_total > 0.0);
            } else {
                records[at + quad] = sum;
                if (quad == 0u) {
                    let top4 = h_four(top, r / 4u);
                    records[at + p.v_quads] = vec4<f32>(top4[r % 4u], row_total, 0.0, 0.0);
                }
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn sparse_attention_merge(
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
    merged[row * merge_p.v_quads + quad] = select(vec4<f32>(0.0), sums / max(total, 1e-30), total > 0.0);
}
