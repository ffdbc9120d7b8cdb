// index_score: how much each token wants each complete block of its own sequence.
// A block owns h_FOURS tokens and 2 * THREADS neighbouring blocks of keys, two a thread. For four query heads of all
// its tokens at a time it has the queries in shared memory, or passes them between threads; a thread multiplies its keys
// with all of them. Tokens of several sequences are visited sequence by sequence.
#import grid
#import numeric

@group(0) @binding(0) var<storage, read_write> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> k_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> page_table: array<i32>;
@group(0) @binding(3) var<storage, read_write> seq_rows: array<i32>;
@group(0) @binding(4) var<storage, read_write> positions: array<i32>;
@group(0) @binding(5) var<storage, read_write> w: array<f32>;
// Bits, because constant expressions cannot make an infinity.
@group(0) @binding(6) var<storage, read_write> scores: array<u32>;
@group(0) @binding(7) var<uniform> p: Params;

const NONE = 0xffffffffu;
const NEG_INF_BITS = 0xff800000u;

var<workgroup> queries: array<h_Rows, Q_LEN>; // by channel

// Row of the page table, negative for padding.
fn sequence(token: u32) -> i32 {
    if (token >= p.n_tokens) {
        return -1;
    }
    let row = seq_rows[p.seq_off + token];
    return select(row, -1, row >= i32(p.n_seq_rows));
}

// Complete blocks that a token sees.
fn candidates(token: u32) -> u32 {
    if (token >= p.n_tokens) {
        return 0u;
    }
    let position = min(positions[p.pos_off + token], 0x3fffffff);
    return select(0u, min(u32(position + 1) / p.ratio, p.n_blocks), position >= 0);
}

// Where block e of a sequence lies, in rows of the keys.
fn key_row(seq: u32, e: u32) -> u32 {
    let ordinal = e / p.page_blocks;
    if (ordinal >= p.max_pages) {
        return NONE;
    }
    let page = page_table[p.table_off + seq * p.max_pages + ordinal];
    if (page < 0 || u32(page) >= p.n_pages) {
        return NONE;
    }
    return u32(page) * p.page_blocks + e % p.page_blocks;
}

// Four heads of a token: a channel of their queries, or their weights.
fn four_heads(token: u32, head: u32, channel: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    if (token < p.n_tokens) {
        let at = p.q_off + token * p.q_s0 + head * p.q_s1 + channel;
        for (var i = 0u; i < min(4u, p.n_heads - head); i++) {
            v[i] = q[at + i * p.q_s1];
        }
    }
    return v;
}

fn four_weights(token: u32, head: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    if (token < p.n_tokens) {
        for (var i = 0u; i < min(4u, p.n_heads - head); i++) {
            if (WEIGHTED) {
                v[i] = w[p.w_off + token * p.w_s0 + head + i];
            } else {
                v[i] = 1.0;
            }
        }
    }
    return v;
}

@compute @workgroup_size(THREADS)
fn index_score(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_groups) {
        return;
    }
    let token = index / p.n_chunks * h_FOURS;
    let a = (index % p.n_chunks) * 2u * THREADS + 2u * thread;
    var seqs = vec4<i32>(-1);
    var ends = vec4<u32>(0u);
    for (var i = 0u; i < h_FOURS; i++) {
        seqs[i] = sequence(token + i);
        ends[i] = candidates(token + i);
    }
    var sums_a = vec4<f32>(0.0);
    var sums_b = vec4<f32>(0.0);
    var sees_a = vec4<bool>(false);
    var sees_b = vec4<bool>(false);
    for (var head = 0u; head < p.n_heads; head += 4u) {
        if (s_STAGED) {
            workgroupBarrier();
            for (var c = thread; c < p.dim; c += THREADS) {
                var rows = h_all(0.0);
                for (var i = 0u; i < h_FOURS; i++) {
                    rows = h_with(rows, i, four_heads(token + i, head, c));
                }
                queries[c] = rows;
            }
            workgroupBarrier();
        }
        var weights = h_all(0.0);
        for (var i = 0u; i < h_FOURS; i++) {
            weights = h_with(weights, i, four_weights(token + i, head));
        }
        for (var r = 0u; r < h_FOURS; r++) {
            let seq = seqs[r];
            let seen = (r > 0u && seqs.x == seq) || (r > 1u && seqs.y == seq) || (r > 2u && seqs.z == seq);
            if (seq < 0 || seen) {
                continue;
            }
            let mine = seqs == vec4<i32>(seq);
            let wants_a = mine & (vec4<u32>(a) < ends);
            let wants_b = mine & (vec4<u32>(a + 1u) < ends);
            if (!s_together(any(wants_a | wants_b))) {
                continue;
            }
            let row_a = key_row(u32(seq), a);
            let row_b = key_row(u32(seq), a + 1u);
            let has_a = wants_a & vec4<bool>(row_a != NONE);
            let has_b = wants_b & vec4<bool>(row_b != NONE);
            let has_one = any(has_a | has_b);
            if (!s_together(has_one)) {
                continue;
            }
            // Where only one of the keys is a candidate's, both stand for it; where none is, some key does.
            let first = select(0u, select(row_b, row_a, any(has_a)), has_one);
            let second = select(0u, select(row_a, row_b, any(has_b)), has_one);
            var products_a = h_all(0.0);
            var products_b = h_all(0.0);
            var own = h_all(0.0);
            for (var c = 0u; c < p.dim; c += 4u) {
                if (c % 8u == 0u) {
                    own = s_own(token, head, c, thread);
                }
                let key_a = k_quad(first * p.k_words, c / 4u);
                let key_b = k_quad(second * p.k_words, c / 4u);
                let q0 = s_at(own, c);
                products_a = h_axpy(products_a, key_a.x, q0);
                products_b = h_axpy(products_b, key_b.x, q0);
                let q1 = s_at(own, c + 1u);
                products_a = h_axpy(products_a, key_a.y, q1);
                products_b = h_axpy(products_b, key_b.y, q1);
                let q2 = s_at(own, c + 2u);
                products_a = h_axpy(products_a, key_a.z, q2);
                products_b = h_axpy(products_b, key_b.z, q2);
                let q3 = s_at(own, c + 3u);
                products_a = h_axpy(products_a, key_a.w, q3);
                products_b = h_axpy(products_b, key_b.w, q3);
            }
            sums_a = select(sums_a, sums_a + h_rectified(products_a, weights), has_a);
            sums_b = select(sums_b, sums_b + h_rectified(products_b, weights), has_b);
            sees_a = sees_a | has_a;
            sees_b = sees_b | has_b;
        }
    }
    for (var i = 0u; i < h_FOURS; i++) {
        if (token + i < p.n_tokens) {
            let at = (token + i) * p.n_blocks + a;
            if (a < p.n_blocks) {
                scores[at] = select(NEG_INF_BITS, bitcast<u32>(p.scale * sums_a[i]), sees_a[i]);
            }
            if (a + 1u < p.n_blocks) {
                scores[at + 1u] = select(NEG_INF_BITS, bitcast<u32>(p.scale * sums_b[i]), sees_b[i]);
            }
        }
    }
}
