// peak_read: reads a buffer once, in order: in each turn four vectors a thread, neighbours within the block.
#include "lib/device.cuh"

KERNEL peak_read(const uint4* __restrict__ x, unsigned* __restrict__ y, const Params p) {
    uint4 sum = {0u, 0u, 0u, 0u};
    // The length is a multiple of a turn of the whole grid.
    for (size_t i = size_t(block_id().x) * 4u * THREADS + thread_id(); i < p.n; i += size_t(grid_size().x) * 4u * THREADS) {
        for (unsigned part = 0u; part < 4u; part++) {
            uint4 v = x[i + part * THREADS];
            sum = {sum.x ^ v.x, sum.y ^ v.y, sum.z ^ v.z, sum.w ^ v.w};
        }
    }
    y[block_id().x * THREADS + thread_id()] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
