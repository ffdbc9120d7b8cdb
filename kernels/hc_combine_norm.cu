// hc_combine_norm: adds a result to the streams of a residual and normalises each; both are kept.
// One block per THREADS / LANES rows, a row being one stream of one token; the LANES threads of a row stride over it.
// Bound by memory.
#include "lib/grid.cuh"
#include "lib/hc_weight.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL hc_combine_norm(const float* __restrict__ r, const float* __restrict__ x, const float* __restrict__ inject,
                       const float* __restrict__ w, float* __restrict__ sum, float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    bool exists = row < p.n_rows;
    unsigned n = exists ? p.n : 0u;
    unsigned token = row / p.n_streams, stream = row % p.n_streams;
    const float* r_at = r + (exists ? row_offset(row, p.r_n1, p.r_s0, p.r_s1, p.r_off) : 0u);
    const float* x_at = x + (exists ? size_t(token) * p.n : 0u);
    const float* w_at = w + stream * p.n;
    size_t y_row = exists ? size_t(row) * p.n : 0u;
    float weight = 0.0f;
    if (exists) {
        size_t at = row_offset(token, p.inject_n1, p.inject_s0, p.inject_s1, p.inject_off) + stream;
        weight = hc_weight(inject[at], p.scale);
    }
    float squares = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        float v = r_at[i] + weight * x_at[i];
        sum[y_row + i] = v;
        squares += v * v;
    }
    float mean = group_sum(squares, thread, LANES) / float(p.n);
    // A row of zeros with eps = 0 stays zero.
    float scale = mean + p.eps > 0.0f ? 1.0f / sqrtf(mean + p.eps) : 0.0f;
    // Each thread reads back what it wrote itself.
    for (unsigned i = lane; i < n; i += LANES) {
        y[y_row + i] = sum[y_row + i] * scale * w_at[i];
    }
}
