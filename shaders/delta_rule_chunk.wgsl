// delta_rule_chunk: the gated delta rule of runs of more rows than are recorded, CHUNK tokens at a time.
// delta_rule_chunk_prepare: a block owns a chunk of a head, a thread 4 x 4 elements of its matrices: the inverse T of
// the triangular system, the masked products P of queries and keys, the factors of the tokens.
// delta_rule_chunk: a block owns COLUMNS output channels of a head of a run and goes through its chunks with their
// columns of the state in shared memory. A thread has 4 tokens by 4 channels of the products of keys or queries and
// state, then 4 channels of some rows of the state. Keys and queries lie there SLICE channels at a time.
// delta_rule_chunk_short: runs of at most as many rows as are recorded, token by token (lib/delta_rule).
// Bound by arithmetic.
#import delta_rule
#import grid
#import numeric
#import runs

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> gates: array<f32>;
@group(0) @binding(2) var<storage, read_write> runs: array<i32>;
@group(0) @binding(3) var<storage, read_write> commits: array<i32>;
@group(0) @binding(4) var<storage, read_write> state: array<f32>;
@group(0) @binding(5) var<storage, read_write> record: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
// Of each token and head: a row of T, a row of P, (decay from the chunk's start, to its end, scales of key and query).
@group(0) @binding(7) var<storage, read_write> prepared: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> p: Params;

const GROUPS = CHUNK / 4u; // of 4 tokens
const QUADS = COLUMNS / 4u; // of 4 channels
const PREPARED = 2u * GROUPS + 1u;
const PREPARE_SLICE = 16u;
// Slices lie channel by channel, the groups of keys, then those of queries. One more keeps neighbouring channels apart.
const STRIDE = 2u * GROUPS + 1u;
// What the state takes up needs keys alone: twice as many channels fit.
const WHOLE = SLICE == PADDED;
const KEY_STRIDE = select(GROUPS + 1u, STRIDE, WHOLE);
const KEY_SLICE = select(2u * SLICE, SLICE, WHOLE);

var<workgroup> parts: array<vec4<f32>, PREPARE_SLICE * STRIDE>;
var<workgroup> system: array<f32, CHUNK * (CHUNK + 1u)>; // decays, then A
var<workgroup> inverse: array<f32, CHUNK * CHUNK>;
// Of each token.
var<workgroup> gs: array<f32, CHUNK>;
var<workgroup> betas: array<f32, CHUNK>;
var<workgroup> k_scales: array<f32, CHUNK>;
var<workgroup> q_scales: array<f32, CHUNK>;
var<workgroup> decays_in: array<f32, CHUNK>;  // from the chunk's start
var<workgroup> decays_out: array<f32, CHUNK>; // to its end

var<workgroup> columns: array<vec4<f32>, PADDED * QUADS>; // the state: channel of a key -> quad
var<workgroup> solved: array<vec4<f32>, CHUNK * QUADS>;   // right sides, then u: token -> quad
var<workgroup> slice: array<vec4<f32>, 2u * SLICE * (GROUPS + 1u)>;
var<workgroup> factors: array<vec4<f32>, CHUNK>;

// Rows of a run that follow each other in one chunk.
struct Chunk {
    first: u32, // in the step
    n_rows: u32,
    // Rows of the run before it.
    before: u32,
}

fn n_chunks(n_rows: u32) -> u32 {
    return (n_rows + CHUNK - 1u) / CHUNK;
}

// Chunks of a long run before its recorded part, which begins a chunk.
fn n_stored_chunks(run: Run) -> u32 {
    return n_chunks(run.n_rows - p.n_recorded);
}

fn chunk_of(run: Run, index: u32) -> Chunk {
    let stored = run.n_rows - p.n_recorded;
    let n_stored = n_chunks(stored);
    let recorded = index >= n_stored;
    let before = select(index * CHUNK, stored + (index - n_stored) * CHUNK, recorded);
    let n_rows = min(CHUNK, select(stored, run.n_rows, recorded) - before);
    return Chunk(run.first + before, n_rows, before);
}

// The key head of a value head.
fn key_head_of(head: u32) -> u32 {
    return select(head / (p.n_v_heads / p.n_k_heads), head % p.n_k_heads, TILED);
}

// Channel `i` of the keys (groups below GROUPS) or queries of 4 tokens; zeros where there are none.
fn four_tokens(chunk: Chunk, key_head: u32, group: u32, i: u32) -> vec4<f32> {
    let row = group % GROUPS * 4u;
    var four = vec4<f32>(0.0);
    if (i < p.k_dim && row < chunk.n_rows) {
        let head = select(key_head, p.n_k_heads + key_head, group < GROUPS);
        let at = p.qkv_off + (chunk.first + row) * p.qkv_s + head * p.k_dim + i;
        four.x = qkv[at];
        if (row + 1u < chunk.n_rows) {
            four.y = qkv[at + p.qkv_s];
        }
        if (row + 2u < chunk.n_rows) {
            four.z = qkv[at + 2u * p.qkv_s];
        }
        if (row + 3u < chunk.n_rows) {
            four.w = qkv[at + 3u * p.qkv_s];
        }
    }
    return four;
}

// One over the length, 0 for length 0.
fn over_length(squares: f32) -> f32 {
    return select(0.0, inverseSqrt(squares + p.l2_eps), squares + p.l2_eps > 0.0);
}

@compute @workgroup_size(THREADS)
fn delta_rule_chunk_prepare(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    let head = index % p.n_v_heads;
    var chunk_index = index / p.n_v_heads;
    var run_index = 0u;
    var run = Run(0u, 0u, 0u, 0u);
    for (; run_index < p.n_runs; run_index += 1u) {
        run = run_at(run_index);
        if (run.n_rows > p.longest) {
            let n = n_stored_chunks(run) + n_chunks(p.n_recorded);
            if (chunk_index < n) {
                break;
            }
            chunk_index -= n;
        }
    }
    if (run_index >= p.n_runs) {
        return;
    }
    let chunk = chunk_of(run, chunk_index);
    let key_head = key_head_of(head);

    // <k_i, k_j> and <q_i, k_j> of tokens i of group `rows` and j of group `others`.
    let rows = thread / GROUPS;
    let others = thread % GROUPS;
    var kk0 = vec4<f32>(0.0);
    var kk1 = vec4<f32>(0.0);
    var kk2 = vec4<f32>(0.0);
    var kk3 = vec4<f32>(0.0);
    var qk0 = vec4<f32>(0.0);
    var qk1 = vec4<f32>(0.0);
    var qk2 = vec4<f32>(0.0);
    var qk3 = vec4<f32>(0.0);
    var qq = vec4<f32>(0.0);
    for (var base = 0u; base < p.k_dim; base += PREPARE_SLICE) {
        workgroupBarrier();
        for (var item = thread; item < PREPARE_SLICE * 2u * GROUPS; item += THREADS) {
            let i = item % PREPARE_SLICE;
            let group = item / PREPARE_SLICE;
            parts[i * STRIDE + group] = four_tokens(chunk, key_head, group, base + i);
        }
        workgroupBarrier();
        for (var i = 0u; i < PREPARE_SLICE; i += 1u) {
            let k = parts[i * STRIDE + rows];
            let q = parts[i * STRIDE + GROUPS + rows];
            let other = parts[i * STRIDE + others];
            kk0 += k.x * other;
            kk1 += k.y * other;
            kk2 += k.z * other;
            kk3 += k.w * other;
            qk0 += q.x * other;
            qk1 += q.y * other;
            qk2 += q.z * other;
            qk3 += q.w * other;
            qq += q * q;
        }
    }
    if (rows == others) {
        let kk = vec4<f32>(kk0.x, kk1.y, kk2.z, kk3.w);
        for (var r = 0u; r < 4u; r += 1u) {
            k_scales[4u * rows + r] = select(1.0, over_length(kk[r]), NORMED);
            q_scales[4u * rows + r] = p.scale * select(1.0, over_length(qq[r]), NORMED);
        }
    }
    if (thread < CHUNK) {
        let exists = thread < chunk.n_rows;
        let at = p.gates_off + (chunk.first + select(0u, thread, exists)) * 2u * p.n_v_heads + head;
        gs[thread] = select(0.0, min(gates[at], 0.0), exists);
        betas[thread] = select(0.0, gates[at + p.n_v_heads], exists);
    }
    workgroupBarrier();

    // Each logarithm is a sum of its own: a difference of sums from the start would lose what cancels.
    if (thread < CHUNK) {
        let j = thread;
        var sum = 0.0;
        system[j * (CHUNK + 1u) + j] = 1.0;
        for (var i = j + 1u; i < CHUNK; i += 1u) {
            sum += gs[i];
            system[i * (CHUNK + 1u) + j] = exp_neg(sum);
        }
        decays_out[j] = exp_neg(sum);
    } else if (thread < 2u * CHUNK) {
        let i = thread - CHUNK;
        var sum = 0.0;
        for (var j = 0u; j <= i; j += 1u) {
            sum += gs[j];
        }
        decays_in[i] = exp_neg(sum);
    }
    workgroupBarrier();

    let j = vec4<u32>(4u * others) + vec4<u32>(0u, 1u, 2u, 3u);
    let k_scale = vec4<f32>(k_scales[j.x], k_scales[j.y], k_scales[j.z], k_scales[j.w]);
    for (var r = 0u; r < 4u; r += 1u) {
        let i = 4u * rows + r;
        let at = i * (CHUNK + 1u) + 4u * others;
        let decay = vec4<f32>(system[at], system[at + 1u], system[at + 2u], system[at + 3u]);
        var kk = kk0;
        var qk = qk0;
        if (r == 1u) {
            kk = kk1;
            qk = qk1;
        } else if (r == 2u) {
            kk = kk2;
            qk = qk2;
        } else if (r == 3u) {
            kk = kk3;
            qk = qk3;
        }
        // Scales first: a small decay times a small scale could vanish.
        let a = select(vec4<f32>(0.0), betas[i] * k_scales[i] * kk * k_scale * decay, j < vec4<u32>(i));
        system[at] = a.x;
        system[at + 1u] = a.y;
        system[at + 2u] = a.z;
        system[at + 3u] = a.w;
        if (i < chunk.n_rows) {
            let product = select(vec4<f32>(0.0), q_scales[i] * qk * k_scale * decay, j <= vec4<u32>(i));
            prepared[((chunk.first + i) * p.n_v_heads + head) * PREPARED + GROUPS + others] = product;
        }
    }
    workgroupBarrier();

    // A thread has a column of the inverse.
    if (thread < CHUNK) {
        for (var i = 0u; i < CHUNK; i += 1u) {
            var sum = select(0.0, 1.0, i == thread);
            for (var l = 0u; l < i; l += 1u) {
                sum -= system[i * (CHUNK + 1u) + l] * inverse[l * CHUNK + thread];
            }
            inverse[i * CHUNK + thread] = sum;
        }
    }
    workgroupBarrier();
    for (var item = thread; item < chunk.n_rows * GROUPS; item += THREADS) {
        let i = item / GROUPS;
        let at = 4u * (item % GROUPS);
        let row = i * CHUNK + at;
        prepared[((chunk.first + i) * p.n_v_heads + head) * PREPARED + item % GROUPS] = vec4<f32>(
            inverse[row] * betas[at],
            inverse[row + 1u] * betas[at + 1u],
            inverse[row + 2u] * betas[at + 2u],
            inverse[row + 3u] * betas[at + 3u],
        );
    }
    if (thread < chunk.n_rows) {
        prepared[((chunk.first + thread) * p.n_v_heads + head) * PREPARED + 2u * GROUPS] = vec4<f32>(
            decays_in[thread],
            decays_out[thread],
            k_scales[thread],
            q_scales[thread],
        );
    }

    let stored = run.n_rows - p.n_recorded;
    if (chunk.before >= stored) {
        let half = 1u - (u32(commits[p.commits_off + 2u * run_index + 1u]) & 1u);
        let ratio = p.n_v_heads / p.n_k_heads;
        let writes_key = select(head % ratio == 0u, head < p.n_k_heads, TILED);
        let first = (run.slot * 2u + half) * p.n_recorded + chunk.before - stored;
        if (thread < chunk.n_rows) {
            record[(first + thread) * p.record_len + p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head] =
                gates[p.gates_off + (chunk.first + thread) * 2u * p.n_v_heads + head];
        }
        if (writes_key) {
            for (var item = thread; item < chunk.n_rows * p.k_dim; item += THREADS) {
                let row = item / p.k_dim;
                let at = key_head * p.k_dim + item % p.k_dim;
                record[(first + row) * p.record_len + at] = k_scales[row]
                    * qkv[p.qkv_off + (chunk.first + row) * p.qkv_s + p.n_k_heads * p.k_dim + at];
            }
        }
    }
}

// Loads a slice base channel `base` on: of keys and queries, or of keys alone.
fn load_slice(chunk: Chunk, key_head: u32, base: u32, width: u32, stride: u32, n_groups: u32, thread: u32) {
    for (var item = thread; item < width * n_groups; item += THREADS) {
        let i = item % width;
        let group = item / width;
        slice[i * stride + group] = four_tokens(chunk, key_head, group, base + i);
    }
}

@compute @workgroup_size(THREADS)
fn delta_rule_chunk(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    let head = (index / p.n_columns) % p.n_v_heads;
    let run_index = index / (p.n_columns * p.n_v_heads);
    let run = run_at(run_index);
    if (run.n_rows <= p.longest) {
        return;
    }
    let key_head = key_head_of(head);
    let block_channel = (index % p.n_columns) * COLUMNS;
    let quad = thread % QUADS;
    let group = thread / QUADS;
    let channel = block_channel + 4u * quad;
    let n_channels = p.v_dim - min(p.v_dim, channel);
    let fresh = run.position == 0u;
    let n_commit = select(u32(clamp(commits[p.commits_off + 2u * run_index], 0, i32(p.n_recorded))), 0u, fresh);
    let half = u32(commits[p.commits_off + 2u * run_index + 1u]) & 1u;
    let old_record = (run.slot * 2u + half) * p.n_recorded;
    let new_record = (run.slot * 2u + 1u - half) * p.n_recorded;
    let u_at = p.n_k_heads * p.k_dim + head * p.v_dim + channel;

    // The state, and what is committed of the record.
    for (var item = thread; item < PADDED * QUADS; item += THREADS) {
        let i = item % PADDED;
        let first = block_channel + 4u * (item / PADDED);
        let n = p.v_dim - min(p.v_dim, first);
        var s = vec4<f32>(0.0);
        if (i < p.k_dim && !fresh) {
            let at = ((run.slot * p.n_v_heads + head) * p.v_dim + first) * p.k_dim + i;
            for (var c = 0u; c < min(n, 4u); c += 1u) {
                s[c] = state[at + c * p.k_dim];
            }
            for (var t = 0u; t < n_commit; t += 1u) {
                let old = (old_record + t) * p.record_len;
                let g = record[old + p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head];
                let k = record[old + key_head * p.k_dim + i];
                let u = old + p.n_k_heads * p.k_dim + head * p.v_dim + first;
                s *= exp_neg(min(g, 0.0));
                for (var c = 0u; c < min(n, 4u); c += 1u) {
                    s[c] += k * record[u + c];
                }
            }
        }
        columns[i * QUADS + item / PADDED] = s;
    }

    let n_stored = n_stored_chunks(run);
    let n_all = n_stored + n_chunks(p.n_recorded);
    for (var chunk_index = 0u; chunk_index <= n_all; chunk_index += 1u) {
        workgroupBarrier();
        if (chunk_index == n_stored) {
            for (var item = thread; item < PADDED * QUADS; item += THREADS) {
                let i = item % PADDED;
                let first = block_channel + 4u * (item / PADDED);
                let n = p.v_dim - min(p.v_dim, first);
                if (i < p.k_dim) {
                    let at = ((run.slot * p.n_v_heads + head) * p.v_dim + first) * p.k_dim + i;
                    let s = columns[i * QUADS + item / PADDED];
                    for (var c = 0u; c < min(n, 4u); c += 1u) {
                        state[at + c * p.k_dim] = s[c];
                    }
                }
            }
        }
        if (chunk_index == n_all) {
            break;
        }
        let chunk = chunk_of(run, chunk_index);
        for (var i = thread; i < CHUNK; i += THREADS) {
            var factor = vec4<f32>(0.0);
            if (i < chunk.n_rows) {
                factor = prepared[((chunk.first + i) * p.n_v_heads + head) * PREPARED + 2u * GROUPS];
            }
            factors[i] = factor;
        }

        // Keys, in the first half of the groups, and queries times state.
        var sum0 = vec4<f32>(0.0);
        var sum1 = vec4<f32>(0.0);
        var sum2 = vec4<f32>(0.0);
        var sum3 = vec4<f32>(0.0);
        for (var base = 0u; base < PADDED; base += SLICE) {
            workgroupBarrier();
            load_slice(chunk, key_head, base, SLICE, STRIDE, 2u * GROUPS, thread);
            workgroupBarrier();
            for (var i = 0u; i < SLICE; i += 1u) {
                let four = slice[i * STRIDE + group];
                let s = columns[(base + i) * QUADS + quad];
                sum0 += four.x * s;
                sum1 += four.y * s;
                sum2 += four.z * s;
                sum3 += four.w * s;
            }
        }
        let row = 4u * (group % GROUPS);
        let first = ((chunk.first + row) * p.n_v_heads + head) * PREPARED;
        let next = p.n_v_heads * PREPARED;
        if (group < GROUPS) {
            for (var r = 0u; r < 4u; r += 1u) {
                var right_side = vec4<f32>(0.0);
                if (row + r < chunk.n_rows) {
                    let at = p.qkv_off + (chunk.first + row + r) * p.qkv_s + 2u * p.n_k_heads * p.k_dim
                        + head * p.v_dim + channel;
                    for (var c = 0u; c < min(n_channels, 4u); c += 1u) {
                        right_side[c] = qkv[at + c];
                    }
                    var sum = sum0;
                    if (r == 1u) {
                        sum = sum1;
                    } else if (r == 2u) {
                        sum = sum2;
                    } else if (r == 3u) {
                        sum = sum3;
                    }
                    right_side -= factors[row + r].x * (factors[row + r].z * sum);
                }
                solved[(row + r) * QUADS + quad] = right_side;
            }
        }
        workgroupBarrier();
        if (group < GROUPS) {
            sum0 = vec4<f32>(0.0);
            sum1 = vec4<f32>(0.0);
            sum2 = vec4<f32>(0.0);
            sum3 = vec4<f32>(0.0);
        } else {
            sum0 = factors[row].x * (factors[row].w * sum0);
            sum1 = factors[row + 1u].x * (factors[row + 1u].w * sum1);
            sum2 = factors[row + 2u].x * (factors[row + 2u].w * sum2);
            sum3 = factors[row + 3u].x * (factors[row + 3u].w * sum3);
        }
        // Rows of T times right sides make u; then rows of P times u make the outputs.
        for (var turn = 0u; turn < 2u; turn += 1u) {
            let mine = (group < GROUPS) == (turn == 0u);
            if (mine) {
                for (var other = 0u; other <= group % GROUPS; other += 1u) {
                    let at = first + turn * GROUPS + other;
                    let x0 = solved[4u * other * QUADS + quad];
                    let x1 = solved[(4u * other + 1u) * QUADS + quad];
                    let x2 = solved[(4u * other + 2u) * QUADS + quad];
                    let x3 = solved[(4u * other + 3u) * QUADS + quad];
                    if (row < chunk.n_rows) {
                        let m = prepared[at];
                        sum0 += m.x * x0 + m.y * x1 + m.z * x2 + m.w * x3;
                    }
                    if (row + 1u < chunk.n_rows) {
                        let m = prepared[at + next];
                        sum1 += m.x * x0 + m.y * x1 + m.z * x2 + m.w * x3;
                    }
                    if (row + 2u < chunk.n_rows) {
                        let m = prepared[at + 2u * next];
                        sum2 += m.x * x0 + m.y * x1 + m.z * x2 + m.w * x3;
                    }
                    if (row + 3u < chunk.n_rows) {
                        let m = prepared[at + 3u * next];
                        sum3 += m.x * x0 + m.y * x1 + m.z * x2 + m.w * x3;
                    }
                }
            }
            if (turn == 0u) {
                workgroupBarrier();
                if (mine) {
                    solved[row * QUADS + quad] = sum0;
                    solved[(row + 1u) * QUADS + quad] = sum1;
                    solved[(row + 2u) * QUADS + quad] = sum2;
                    solved[(row + 3u) * QUADS + quad] = sum3;
                }
                workgroupBarrier();
            }
        }
        // The threads of keys have u, those of queries outputs.
        for (var r = 0u; r < 4u; r += 1u) {
            if (row + r < chunk.n_rows) {
                var sum = sum0;
                if (r == 1u) {
                    sum = sum1;
                } else if (r == 2u) {
                    sum = sum2;
                } else if (r == 3u) {
                    sum = sum3;
                }
                let at = ((chunk.first + row + r) * p.n_v_heads + head) * p.v_dim + channel;
                let recorded = (new_record + chunk.before + row + r - (run.n_rows - p.n_recorded)) * p.record_len + u_at;
                for (var c = 0u; c < min(n_channels, 4u); c += 1u) {
                    if (group >= GROUPS) {
                        y[at + c] = sum[c];
                    } else if (chunk_index >= n_stored) {
                        record[recorded + c] = sum[c];
                    }
                }
            }
        }

        if (chunk_index + 1u < n_all || p.n_recorded == 0u) {
            let decay = factors[chunk.n_rows - 1u].x;
            for (var base = 0u; base < PADDED; base += KEY_SLICE) {
                if (!WHOLE) {
                    workgroupBarrier();
                    load_slice(chunk, key_head, base, KEY_SLICE, KEY_STRIDE, GROUPS, thread);
                    workgroupBarrier();
                }
                // Two rows of the state at a time.
                let n = min(KEY_SLICE, PADDED - base);
                for (var i = group; i < n; i += 4u * GROUPS) {
                    let has_second = i + 2u * GROUPS < n;
                    let second = select(i, i + 2u * GROUPS, has_second);
                    var s0 = decay * columns[(base + i) * QUADS + quad];
                    var s1 = decay * columns[(base + second) * QUADS + quad];
                    for (var other = 0u; other < GROUPS; other += 1u) {
                        let row = 4u * other;
                        let f0 = factors[row];
                        let f1 = factors[row + 1u];
                        let f2 = factors[row + 2u];
                        let f3 = factors[row + 3u];
                        let k_scale = vec4<f32>(f0.z, f1.z, f2.z, f3.z);
                        let to_end = vec4<f32>(f0.y, f1.y, f2.y, f3.y);
                        let k0 = to_end * (k_scale * slice[i * KEY_STRIDE + other]);
                        let k1 = to_end * (k_scale * slice[second * KEY_STRIDE + other]);
                        let x0 = solved[row * QUADS + quad];
                        let x1 = solved[(row + 1u) * QUADS + quad];
                        let x2 = solved[(row + 2u) * QUADS + quad];
                        let x3 = solved[(row + 3u) * QUADS + quad];
                        s0 += k0.x * x0 + k0.y * x1 + k0.z * x2 + k0.w * x3;
                        s1 += k1.x * x0 + k1.y * x1 + k1.z * x2 + k1.w * x3;
                    }
                    columns[(base + i) * QUADS + quad] = s0;
                    if (has_second) {
                        columns[(base + second) * QUADS + quad] = s1;
                    }
                }
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn delta_rule_chunk_short(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = folded(block, grid);
    if (index >= p.n_blocks) {
        return;
    }
    by_token(index, thread, p.longest);
}
