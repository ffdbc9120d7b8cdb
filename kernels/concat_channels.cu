// concat_channels: the rows of two tensors side by side.
// One block per chunk of the output, which is one long row; each thread strides over the chunk. Bound by memory.
#include "lib/elementwise.cuh"

KERNEL concat_channels(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y, const Params p) {
    Part part = block_part(p);
    for (unsigned i = part.first + thread_id(); i < part.end; i += THREADS) {
        unsigned row = i / p.width;
        unsigned column = i % p.width;
        if (column < p.n_first) {
            y[i] = a[row_offset(row, p.first_n1, p.first_s0, p.first_s1, p.first_off) + column];
        } else {
            size_t at = row_offset(row, p.second_n1, p.second_s0, p.second_s1, p.second_off);
            y[i] = b[at + (column - p.n_first)];
        }
    }
}
