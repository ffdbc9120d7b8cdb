// rms_norm: divides each row by its root mean square, then scales by a weight.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it, by quads where rows are aligned. Bound
// by memory.
#include "lib/grid.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL rms_norm(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    unsigned n = row < p.n_rows ? p.n : 0u;
    const float* x_row = x + (n > 0u ? row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) : 0u);
    bool quads = are_quads(x, p.n, p.x_s0, p.x_s1, p.x_off) && size_t(w) % 16u == 0u && size_t(y) % 16u == 0u;
    float sum = 0.0f;
    if (quads) {
        for (unsigned i = lane; i < n / 4u; i += LANES) {
            float4 v = reinterpret_cast<const float4*>(x_row)[i];
            sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
    } else {
        for (unsigned i = lane; i < n; i += LANES) {
            float v = x_row[i];
            sum += v * v;
        }
    }
    float mean = group_sum(sum, thread, LANES) / float(p.n);
    // A row of zeros with eps = 0 stays zero.
    float scale = mean + p.eps > 0.0f ? 1.0f / sqrtf(mean + p.eps) : 0.0f;
    const float* w_row = w + (row % p.n_groups) * p.n;
    float* y_row = y + (n > 0u ? size_t(row) * p.n : 0u);
    if (quads) {
        for (unsigned i = lane; i < n / 4u; i += LANES) {
            float4 v = reinterpret_cast<const float4*>(x_row)[i];
            float4 by = reinterpret_cast<const float4*>(w_row)[i];
            reinterpret_cast<float4*>(y_row)[i] = {v.x * scale * by.x, v.y * scale * by.y, v.z * scale * by.z,
                                                   v.w * scale * by.w};
        }
    } else {
        for (unsigned i = lane; i < n; i += LANES) {
            y_row[i] = x_row[i] * scale * w_row[i];
        }
    }
}
