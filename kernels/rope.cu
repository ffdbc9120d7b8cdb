// rope: rotates pairs of channels of each head by the angle of the token's position. Bound by memory.
#include "lib/grid.cuh"
#include "lib/rotate.cuh"

KERNEL rope(const float* __restrict__ x, const int* __restrict__ pos, const float2* __restrict__ table,
            float* __restrict__ y, const Params p) {
    rotate(x, pos, table, y, p, folded() * THREADS + thread_id());
}
