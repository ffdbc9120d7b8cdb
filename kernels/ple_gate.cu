// ple_gate: gates an n-gram embedding by its agreement with every stream of the residual.
// One block per THREADS / LANES rows, a row being one stream of one token; the LANES threads of a row stride over it.
// Bound by memory.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

// 1 / rms of a row whose squares sum to `squares`; a row of zeros with eps = 0 stays zero.
DEVICE float row_scale(const Params& p, float squares) {
    float mean = squares / float(p.n) + p.eps;
    return mean > 0.0f ? 1.0f / sqrtf(mean) : 0.0f;
}

KERNEL ple_gate(const float* __restrict__ key, const float* __restrict__ value, const float* __restrict__ r,
                const float* __restrict__ w_key, const float* __restrict__ w_query, float* __restrict__ y,
                const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    bool exists = row < p.n_rows;
    unsigned n = exists ? p.n : 0u;
    const float* key_at = key + (exists ? size_t(row) * p.n : 0u);
    const float* r_at = r + (exists ? row_offset(row, p.r_n1, p.r_s0, p.r_s1, p.r_off) : 0u);
    const float* value_at = value + (exists ? size_t(row / p.n_streams) * p.n : 0u);
    unsigned w_row = (row % p.n_streams) * p.n;
    float keys = 0.0f, queries = 0.0f, products = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        float k = key_at[i], q = r_at[i];
        keys += k * k;
        queries += q * q;
        products += (k * w_key[w_row + i]) * (q * w_query[w_row + i]);
    }
    float key_scale = row_scale(p, group_sum(keys, thread, LANES));
    float query_scale = row_scale(p, group_sum(queries, thread, LANES));
    float s = group_sum(products, thread, LANES) * key_scale * query_scale * p.scale;
    float root = sqrtf(fmaxf(fabsf(s), 1e-6f));
    float sign = s > 0.0f ? 1.0f : (s < 0.0f ? -1.0f : 0.0f);
    float gate = sigmoid(fminf(sign * root, 128.0f));
    float* y_at = y + (exists ? size_t(row) * p.n : 0u);
    for (unsigned i = lane; i < n; i += LANES) {
        y_at[i] = gate * value_at[i];
    }
}
