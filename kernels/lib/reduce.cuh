// Reductions over the threads of a block, in an order that depends on their number alone.
// Every thread of the block must call them; THREADS is a multiple of 32.
#pragma once
#include "lib/device.cuh"

// The sum over `lanes` neighbouring threads, a power of two; all of them receive it.
DEVICE float group_sum(float value, unsigned thread, unsigned lanes) {
    for (unsigned n = (lanes < 32u ? lanes : 32u) / 2u; n > 0u; n /= 2u) {
        value += shuffle_xor(value, n);
    }
    if (lanes <= 32u) {
        return value;
    }
    SHARED float warp_sums[THREADS / 32u];
    // Sums of an earlier call may still be read.
    block_sync();
    if (thread % 32u == 0u) {
        warp_sums[thread / 32u] = value;
    }
    block_sync();
    unsigned first = thread / lanes * (lanes / 32u);
    float sum = 0.0f;
    for (unsigned i = 0u; i < lanes / 32u; i++) {
        sum += warp_sums[first + i];
    }
    return sum;
}

// The sum over all threads.
DEVICE float block_sum(float value, unsigned thread) { return group_sum(value, thread, THREADS); }
