// The gated delta rule, token by token, for the runs of at most `longest` rows; and zeros for rows of no run.
// A block owns THREADS / LANES output channels of one head of one run: the LANES lanes of a channel keep its row of the
// state, PER_LANE elements each, in registers, from the recorded tokens of the last step to the last token of this one.
// TILED: which key head a value head reads; NORMED: q and k are divided by their lengths. There is no barrier.
// For files with the parameters of `delta_rule_step`.
#pragma once
#include "lib/numeric.cuh"
#include "lib/runs.cuh"

// First row of a run, or the end of the step where there is no such run.
DEVICE unsigned first_row(const int* runs, const Params& p, unsigned index) {
    if (index >= p.n_runs) {
        return p.n_tokens;
    }
    int first = runs[p.runs_off + 4u * size_t(index) + 1u];
    return first >= 0 && unsigned(first) < p.n_tokens ? unsigned(first) : p.n_tokens;
}

// The sum over the lanes of a channel.
DEVICE float channel_sum(float value) {
    for (unsigned n = LANES / 2u; n > 0u; n /= 2u) {
        value += shuffle_xor(value, n);
    }
    return value;
}

// Block `index` of those of all runs.
DEVICE void by_token(unsigned index, unsigned longest, const float* __restrict__ qkv, const float* __restrict__ gates,
                     const int* __restrict__ runs, const int* __restrict__ commits, float* __restrict__ state,
                     float* __restrict__ record, float* __restrict__ y, const Params& p) {
    unsigned lane = thread_id() % LANES;
    unsigned channel = (index % p.n_columns) * (THREADS / LANES) + thread_id() / LANES;
    bool exists = channel < p.v_dim;
    unsigned head = (index / p.n_columns) % p.n_v_heads;
    unsigned run_index = index / (p.n_columns * p.n_v_heads);
    Run run = run_at(runs, p, run_index);
    float* y_at = y + size_t(head) * p.v_dim + channel;
    size_t y_stride = size_t(p.n_v_heads) * p.v_dim;

    // Rows behind the run that belong to none.
    unsigned begin = run_index == 0u ? 0u : first_row(runs, p, run_index);
    unsigned end = first_row(runs, p, run_index + 1u);
    if (exists && lane == 0u) {
        for (unsigned row = run.n_rows > 0u ? run.first + run.n_rows : begin; row < end; row++) {
            y_at[row * y_stride] = 0.0f;
        }
    }
    if (run.n_rows == 0u || run.n_rows > longest) {
        return;
    }

    unsigned ratio = p.n_v_heads / p.n_k_heads;
    unsigned key_head = TILED ? head % p.n_k_heads : head / ratio;
    bool writes_key = (TILED ? head < p.n_k_heads : head % ratio == 0u) && channel == 0u;
    bool fresh = run.position == 0u;
    const int* commit = commits + p.commits_off + 2u * size_t(run_index);
    unsigned n_commit = 0u;
    if (!fresh && commit[0] > 0) {
        n_commit = unsigned(commit[0]) < p.n_recorded ? unsigned(commit[0]) : p.n_recorded;
    }
    unsigned half = unsigned(commit[1]) & 1u;
    unsigned n_recorded = run.n_rows < p.n_recorded ? run.n_rows : p.n_recorded;
    // The place in the order of all tokens, committed ones first, before which the state is stored.
    unsigned stored_at = n_commit + run.n_rows - n_recorded;
    bool stores = (fresh || stored_at > 0u) && exists;

    float* state_row = state + ((size_t(run.slot) * p.n_v_heads + head) * p.v_dim + channel) * p.k_dim;
    const float* old_record = record + (size_t(run.slot) * 2u + half) * p.n_recorded * p.record_len;
    float* new_record = record + (size_t(run.slot) * 2u + 1u - half) * p.n_recorded * p.record_len;
    unsigned keys = key_head * p.k_dim;
    unsigned u_at = p.n_k_heads * p.k_dim + head * p.v_dim + channel;
    unsigned g_at = p.n_k_heads * p.k_dim + p.n_v_heads * p.v_dim + head;
    float s[PER_LANE];
#pragma unroll
    for (unsigned x = 0u; x < PER_LANE; x++) {
        unsigned i = lane + x * LANES;
        s[x] = exists && i < p.k_dim && !fresh ? state_row[i] : 0.0f;
    }
    for (unsigned step = 0u; step <= n_commit + run.n_rows; step++) {
        if (step == stored_at && stores) {
#pragma unroll
            for (unsigned x = 0u; x < PER_LANE; x++) {
                unsigned i = lane + x * LANES;
                if (i < p.k_dim) {
                    state_row[i] = s[x];
                }
            }
        }
        if (step == n_commit + run.n_rows) {
            break;
        }
        // A token of the record has its keys and u there, a new one has its keys in qkv.
        float g, u;
        float k[PER_LANE];
        if (step < n_commit) {
            const float* old = old_record + size_t(step) * p.record_len;
            g = old[g_at];
            u = exists ? old[u_at] : 0.0f;
#pragma unroll
            for (unsigned x = 0u; x < PER_LANE; x++) {
                unsigned i = lane + x * LANES;
                k[x] = i < p.k_dim ? old[keys + i] : 0.0f;
            }
        } else {
            unsigned row = run.first + step - n_commit;
            const float* token = qkv + p.qkv_off + size_t(row) * p.qkv_s;
            float state_key = 0.0f, state_query = 0.0f, key_key = 0.0f, query_query = 0.0f, key_query = 0.0f;
#pragma unroll
            for (unsigned x = 0u; x < PER_LANE; x++) {
                unsigned i = lane + x * LANES;
                k[x] = i < p.k_dim ? token[p.n_k_heads * p.k_dim + keys + i] : 0.0f;
                float q = i < p.k_dim ? token[keys + i] : 0.0f;
                state_key += s[x] * k[x];
                state_query += s[x] * q;
                key_key += k[x] * k[x];
                query_query += q * q;
                key_query += k[x] * q;
            }
            state_key = channel_sum(state_key);
            state_query = channel_sum(state_query);
            key_query = channel_sum(key_query);
            float k_scale = 1.0f;
            float q_scale = p.scale;
            if (NORMED) {
                key_key = channel_sum(key_key) + p.l2_eps;
                query_query = channel_sum(query_query) + p.l2_eps;
                k_scale = key_key > 0.0f ? 1.0f / sqrtf(key_key) : 0.0f;
                q_scale *= query_query > 0.0f ? 1.0f / sqrtf(query_query) : 0.0f;
            }
            const float* gate = gates + p.gates_off + size_t(row) * 2u * p.n_v_heads + head;
            g = gate[0];
            float beta = gate[p.n_v_heads];
            float decay = exp_neg(fminf(g, 0.0f));
            float v = exists ? token[2u * p.n_k_heads * p.k_dim + head * p.v_dim + channel] : 0.0f;
            u = beta * (v - decay * (k_scale * state_key));
            if (exists && lane == 0u) {
                y_at[row * y_stride] = q_scale * (decay * state_query + (k_scale * key_query) * u);
            }
#pragma unroll
            for (unsigned x = 0u; x < PER_LANE; x++) {
                k[x] *= k_scale;
            }
            if (step >= stored_at) {
                float* to = new_record + size_t(step - stored_at) * p.record_len;
                if (exists && lane == 0u) {
                    to[u_at] = u;
                }
                if (channel == 0u && lane == 0u) {
                    to[g_at] = g;
                }
                if (writes_key) {
#pragma unroll
                    for (unsigned x = 0u; x < PER_LANE; x++) {
                        unsigned i = lane + x * LANES;
                        if (i < p.k_dim) {
                            to[keys + i] = k[x];
                        }
                    }
                }
            }
        }
        float decay = exp_neg(fminf(g, 0.0f));
#pragma unroll
        for (unsigned x = 0u; x < PER_LANE; x++) {
            s[x] = decay * s[x] + k[x] * u;
        }
    }
}
