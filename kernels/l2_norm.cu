// l2_norm: divides each row by its Euclidean length. CLAMP: eps is its least value, else it is added to the square.
// One block per THREADS / LANES rows; the LANES threads of a row stride over it. Bound by memory.
#include "lib/grid.cuh"
#include "lib/reduce.cuh"
#include "lib/rows.cuh"

KERNEL l2_norm(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded() * (THREADS / LANES) + thread / LANES;
    unsigned lane = thread % LANES;
    // Rows beyond the last are empty: their threads take part in the barriers.
    unsigned n = row < p.n_rows ? p.n : 0u;
    const float* x_row = x + (n > 0u ? row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off) : 0u);
    float sum = 0.0f;
    for (unsigned i = lane; i < n; i += LANES) {
        float v = x_row[i];
        sum += v * v;
    }
    sum = group_sum(sum, thread, LANES);
    float square = CLAMP ? fmaxf(sum, p.eps * p.eps) : sum + p.eps;
    // A row of zeros with eps = 0 stays zero.
    float scale = square > 0.0f ? 1.0f / sqrtf(square) : 0.0f;
    float* y_row = y + (n > 0u ? size_t(row) * p.n : 0u);
    for (unsigned i = lane; i < n; i += LANES) {
        y_row[i] = x_row[i] * scale;
    }
}
