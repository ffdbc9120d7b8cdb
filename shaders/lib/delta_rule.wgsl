// The gated delta rule, token by token, for the runs of at most `longest` rows; and zeros for rows of no run.
// A block owns THREADS / LANES output channels of one head of one run: the LANES threads of a channel keep its row of
// the state, PER_LANE elements each, in shared memory, from the recorded tokens of the last step to the last token of
// this one. TILED: which key head a value head reads; NORMED: q and k are divided by their lengths.
// For files with the bindings qkv, gates, runs, commits, state, record and y, and the parameters of `delta_rule_step`.
#import numeric
#import runs

var<workgroup> tile: array<f32, THREADS * PER_LANE>;
// Of each thread: S k, S q, k k, q q; and k q.
var<workgroup> sums: array<vec4<f32>, THREADS>;
var<workgroup> crosses: array<f32, THREADS>;

// First row of a run, or the end of the step where there is no such run.
fn first_row(index: u32) -> u32 {
    if (index >= p.n_runs) {
        return p.n_tokens;
    }
    let first = runs[p.runs_off + 4u * index + 1u];
    return select(p.n_tokens, min(u32(max(first, 0)), p.n_tokens), first >= 0);
}

// Leaves the sums over the LANES threads of a channel at the first of them.
fn reduce(thread: u32) {
    let lane = thread % LANES;
    for (var n = LANES / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (lane < n) {
            sums[thread] += sums[thread + n];
            crosses[thread] += crosses[thread + n];
        }
    }
    workgroupBarrier();
}

// Block `index` of those of all runs.
fn by_token(index: u32, thread: u32, longest: u32) {
    let lane = thread % LANES;
    let channel = (index % p.n_columns) * (THREADS / LANES) + thread / LANES;
    let exists = channel < p.v_dim;
    let head = (index / p.n_columns) % p.n_v_heads;
    let run_index = index / (p.n_columns * p.n_v_heads);
    let run = run_at(run_index);

    // Rows behind the run that belong to none.
    let begin = select(first_row(run_index), 0u, run_index == 0u);
    let end = first_row(run_index + 1u);
    if (exists && lane == 0u) {
        for (var row = select(begin, run.first + run.n_rows, run.n_rows > 0u); row < end; row += 1u) {
            y[(row * p.n_v_heads + head) * p.v_dim + channel] = 0.0;
        }
    }
    if (run.n_rows == 0u || run.n_rows > longest) {
        return;
    }

    let ratio = p.n_v_heads / p.n_k_heads;
    let key_head = select(head / ratio, head % p.n_k_heads, TILED);
    let writes_key = select(head % ratio == 0u, head < p.n_k_heads, TILED) && channel == 0u;
    let fresh = run.position == 0u;
    let commit = commits[p.commits_off + 2u * run_index];
    let n_commit = select(u32(clamp(commit, 0, i32(p.n_recorded))), 0u, fresh);
    let half = u32(commits[p.commits_off + 2u * run_index + 1u]) & 1u;
    let n_recorded = min(run.n_rows, p.n_recorded);
    // The place in the order of all tokens, committed ones first, before which the state is stored.
    let stored_at = n_commit + run.n_rows - n_recorded;
    let stores = fresh || stored_at > 0u;

    let state_row = ((run.slot * p.n_v_heads + head) * p.v_dim + channel) * p.k_dim;
    let old_record = (run.slot * 2u + half) * p.n_recorded;
    let new_record = (run.slot * 2u + 1u - half) * p.n_recorded;
    let u_at = p.n_k_heads * p.k_dim + head * p.v_dim + channel;
    let g_at = p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head;
    for (var x = 0u; x < PER_LANE; x += 1u) {
        let i = lane + x * LANES;
        var s = 0.0;
        if (exists && i < p.k_dim && !fresh) {
            s = state[state_row + i];
        }
        tile[x * THREADS + thread] = s;
    }
    for (var step = 0u; step <= n_commit + run.n_rows; step += 1u) {
        if (step == stored_at && stores && exists) {
            for (var x = 0u; x < PER_LANE; x += 1u) {
                let i = lane + x * LANES;
                if (i < p.k_dim) {
                    state[state_row + i] = tile[x * THREADS + thread];
                }
            }
        }
        if (step == n_commit + run.n_rows) {
            break;
        }
        // A token of the record has its keys and u there, a new one has its keys in qkv.
        let recorded = step < n_commit;
        let token = step - select(n_commit, 0u, recorded);
        let row = run.first + token;
        let old = (old_record + token) * p.record_len;
        let k_at = select(p.qkv_off + row * p.qkv_s + (p.n_k_heads + key_head) * p.k_dim, old + key_head * p.k_dim, recorded);
        let q_at = p.qkv_off + row * p.qkv_s + key_head * p.k_dim;
        var g = 0.0;
        var u = 0.0;
        var k_scale = 1.0;
        if (recorded) {
            g = record[old + g_at];
            if (exists) {
                u = record[old + u_at];
            }
        } else {
            var sum = vec4<f32>(0.0);
            var cross = 0.0;
            for (var x = 0u; x < PER_LANE; x += 1u) {
                let i = lane + x * LANES;
                if (i < p.k_dim) {
                    let k = qkv[k_at + i];
                    let q = qkv[q_at + i];
                    let s = tile[x * THREADS + thread];
                    sum += vec4<f32>(s * k, s * q, k * k, q * q);
                    cross += k * q;
                }
            }
            workgroupBarrier();
            sums[thread] = sum;
            crosses[thread] = cross;
            reduce(thread);
            sum = sums[thread - lane];
            cross = crosses[thread - lane];

            g = gates[p.gates_off + row * 2u * p.n_v_heads + head];
            let beta = gates[p.gates_off + (row * 2u + 1u) * p.n_v_heads + head];
            var q_scale = p.scale;
            if (NORMED) {
                k_scale = select(0.0, inverseSqrt(sum.z + p.l2_eps), sum.z + p.l2_eps > 0.0);
                q_scale *= select(0.0, inverseSqrt(sum.w + p.l2_eps), sum.w + p.l2_eps > 0.0);
            }
            let decay = exp_neg(min(g, 0.0));
            var v = 0.0;
            if (exists) {
                v = qkv[p.qkv_off + row * p.qkv_s + 2u * p.n_k_heads * p.k_dim + head * p.v_dim + channel];
            }
            u = beta * (v - decay * (k_scale * sum.x));
            if (exists && lane == 0u) {
                y[(row * p.n_v_heads + head) * p.v_dim + channel] = q_scale * (decay * sum.y + (k_scale * cross) * u);
            }
            if (step >= stored_at) {
                let at = (new_record + step - stored_at) * p.record_len;
                if (exists && lane == 0u) {
                    record[at + u_at] = u;
                }
                if (channel == 0u && lane == 0u) {
                    record[at + g_at] = g;
                }
                if (writes_key) {
                    for (var i = lane; i < p.k_dim; i += LANES) {
                        record[at + key_head * p.k_dim + i] = k_scale * qkv[k_at + i];
                    }
                }
            }
        }
        let decay = exp_neg(min(g, 0.0));
        for (var x = 0u; x < PER_LANE; x += 1u) {
            let i = lane + x * LANES;
            if (i < p.k_dim) {
                var k = 0.0;
                if (recorded) {
                    k = record[k_at + i];
                } else {
                    k = k_scale * qkv[k_at + i];
                }
                tile[x * THREADS + thread] = decay * tile[x * THREADS + thread] + k * u;
            }
        }
    }
}
