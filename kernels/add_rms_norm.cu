// add_rms_norm: adds two tensors and normalises the sum; both results are kept.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it, by quads where rows are aligned. Bound
// by memory.
#include "lib/grid.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL add_rms_norm(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ w,
                    float* __restrict__ sum, float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    bool exists = row < p.n_rows;
    unsigned n = exists ? p.n : 0u;
    const float* a_at = a + (exists ? row_offset(row, p.a_n1, p.a_s0, p.a_s1, p.a_off) : 0u);
    const float* b_at = b + (exists ? row_offset(row, p.b_n1, p.b_s0, p.b_s1, p.b_off) : 0u);
    size_t y_row = exists ? size_t(row) * p.n : 0u;
    bool quads = are_quads(a, p.n, p.a_s0, p.a_s1, p.a_off) && are_quads(b, p.n, p.b_s0, p.b_s1, p.b_off) &&
                 size_t(w) % 16u == 0u && size_t(sum) % 16u == 0u && size_t(y) % 16u == 0u;
    float squares = 0.0f;
    if (quads) {
        for (unsigned i = lane; i < n / 4u; i += LANES) {
            float4 left = reinterpret_cast<const float4*>(a_at)[i];
            float4 right = reinterpret_cast<const float4*>(b_at)[i];
            float4 v = {left.x + right.x, left.y + right.y, left.z + right.z, left.w + right.w};
            reinterpret_cast<float4*>(sum + y_row)[i] = v;
            squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
    } else {
        for (unsigned i = lane; i < n; i += LANES) {
            float v = a_at[i] + b_at[i];
            sum[y_row + i] = v;
            squares += v * v;
        }
    }
    float mean = group_sum(squares, thread, LANES) / float(p.n);
    // A row of zeros with eps = 0 stays zero.
    float scale = mean + p.eps > 0.0f ? 1.0f / sqrtf(mean + p.eps) : 0.0f;
    // Each thread reads back what it wrote itself.
    if (quads) {
        for (unsigned i = lane; i < n / 4u; i += LANES) {
            float4 v = reinterpret_cast<const float4*>(sum + y_row)[i];
            float4 by = reinterpret_cast<const float4*>(w)[i];
            reinterpret_cast<float4*>(y + y_row)[i] = {v.x * scale * by.x, v.y * scale * by.y, v.z * scale * by.z,
                                                       v.w * scale * by.w};
        }
    } else {
        for (unsigned i = lane; i < n; i += LANES) {
            y[y_row + i] = sum[y_row + i] * scale * w[i];
        }
    }
}
