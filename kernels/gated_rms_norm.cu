// gated_rms_norm: rms_norm of one tensor times an activation of another, by SILU z * sigmoid(z) or sigmoid(z).
// One block per THREADS / LANES rows; the LANES threads of a row stride over it. Bound by memory.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL gated_rms_norm(const float* __restrict__ x, const float* __restrict__ z, const float* __restrict__ w,
                      float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    unsigned n = row < p.n_rows ? p.n : 0u;
    const float* x_row = x + (n > 0u ? row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) : 0u);
    const float* z_row = z + (n > 0u ? row_offset(row, p.z_n1, p.z_s0, p.z_s1, p.z_off) : 0u);
    float sum = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        float v = x_row[i];
        sum += v * v;
    }
    float mean = group_sum(sum, thread, LANES) / float(p.n);
    // A row of zeros with eps = 0 stays zero.
    float scale = mean + p.eps > 0.0f ? 1.0f / sqrtf(mean + p.eps) : 0.0f;
    float* y_row = y + (n > 0u ? size_t(row) * p.n : 0u);
    for (unsigned i = lane; i < n; i += LANES) {
        float gate = z_row[i];
        float act = sigmoid(fminf(fmaxf(gate, -128.0f), 128.0f)) * (SILU ? gate : 1.0f);
        y_row[i] = x_row[i] * scale * w[i] * act;
    }
}
