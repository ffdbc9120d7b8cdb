// hadamard: multiplies each run of BLOCK elements by the normalised Hadamard matrix.
// LANES threads own a run, THREADS / LANES runs a block; a run lies in shared memory for log2(BLOCK) rounds. Bound by
// memory.
#include "lib/grid.cuh"
#include "lib/rows.cuh"

constexpr unsigned RUNS = THREADS / LANES;

KERNEL hadamard(const float* __restrict__ x, float* __restrict__ y, const Params p) {
    SHARED float runs[RUNS][BLOCK];
    unsigned slot = thread_id() / LANES;
    unsigned lane = thread_id() % LANES;
    unsigned run = folded() * RUNS + slot;
    float* v = runs[slot];
    bool exists = run < p.n_blocks;
    const float* x_run = x + (exists ? row_offset(run / p.row_blocks, p.x_n1, p.x_s0, p.x_s1, p.x_off) +
                                           size_t(run % p.row_blocks) * BLOCK
                                     : 0u);
    for (unsigned i = lane; i < BLOCK; i += LANES) {
        v[i] = exists ? x_run[i] : 0.0f;
    }
    for (unsigned n = 1u; n < BLOCK; n *= 2u) {
        block_sync();
        for (unsigned pair = lane; pair < BLOCK / 2u; pair += LANES) {
            unsigned i = (pair / n) * 2u * n + pair % n;
            float a = v[i];
            float b = v[i + n];
            v[i] = a + b;
            v[i + n] = a - b;
        }
    }
    block_sync();
    for (unsigned i = lane; i < BLOCK && exists; i += LANES) {
        y[size_t(run) * BLOCK + i] = v[i] * p.scale;
    }
}
