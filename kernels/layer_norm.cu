// layer_norm: shifts each row to mean 0 and scales it to variance 1, then applies a weight and a bias.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it. Bound by memory.
#include "lib/grid.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL layer_norm(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                  float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    unsigned n = row < p.n_rows ? p.n : 0u;
    const float* x_row = x + (n > 0u ? row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) : 0u);
    float sum = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        sum += x_row[i];
    }
    float mean = group_sum(sum, thread, LANES) / float(p.n);
    float squares = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        float d = x_row[i] - mean;
        squares += d * d;
    }
    float variance = group_sum(squares, thread, LANES) / float(p.n);
    // A constant row with eps = 0 gives the bias.
    float scale = variance + p.eps > 0.0f ? 1.0f / sqrtf(variance + p.eps) : 0.0f;
    float* y_row = y + (n > 0u ? size_t(row) * p.n : 0u);
    for (unsigned i = lane; i < n; i += LANES) {
        y_row[i] = (x_row[i] - mean) * scale * w[i] + b[i];
    }
}
