// Kernels of the self-test: some right, most with a planted fault that must be found.
#include "lib/mma.cuh"
#include "lib/reduce.cuh"

// Reverses 64 numbers through shared memory.
DEVICE void reverse_shared(const float* x, float* y, bool wait) {
    SHARED float numbers[THREADS];
    unsigned at = block_id().x * THREADS;
    numbers[thread_id()] = x[at + thread_id()];
    if (wait) {
        block_sync();
    }
    y[at + thread_id()] = numbers[THREADS - 1 - thread_id()];
}
KERNEL reversed(const float* x, float* y, const Params p) { reverse_shared(x, y, true); }
KERNEL no_barrier(const float* x, float* y, const Params p) { reverse_shared(x, y, false); }

// Copies through shared memory by asynchronous copies of 16 bytes.
template <bool WAIT> DEVICE void copy_through(const float* x, float* y) {
    float* numbers = dynamic_shared<float>();
    unsigned at = block_id().x * THREADS;
    if (thread_id() < THREADS / 4) {
        copy_async<16>(numbers + 4 * thread_id(), x + at + 4 * thread_id(), thread_id() != 1);
    }
    copy_commit();
    if constexpr (WAIT) {
        copy_wait<0>();
    }
    block_sync();
    y[at + thread_id()] = numbers[thread_id()];
    block_sync();
    // So that the planted fault is the value read, not the copy left behind.
    copy_wait<0>();
}
KERNEL copied(const float* x, float* y, const Params p) { copy_through<true>(x, y); }
KERNEL no_wait(const float* x, float* y, const Params p) { copy_through<false>(x, y); }

// Half of a warp shuffles, under the mask of all of it.
KERNEL wrong_mask(const float* x, float* y, const Params p) {
    float v = x[thread_id()];
    if (lane_id() < 16) {
        v += shuffle_xor(v, 1u);
    }
    y[thread_id()] = v;
}
// A lane calls under a mask without itself.
KERNEL outside_mask(const float* x, float* y, const Params p) {
    y[thread_id()] = shuffle_xor(x[thread_id()], 1u, 0xffffu);
}
// Half of the block waits at a barrier, the other half in a warp operation for lanes at the barrier.
KERNEL divergent(const float* x, float* y, const Params p) {
    float v = x[thread_id()];
    if (thread_id() % 2 == 0) {
        block_sync();
    } else {
        warp_sync();
    }
    y[thread_id()] = v;
}
KERNEL trapped(const float* x, float* y, const Params p) {
    if (thread_id() == 5) {
        trap();
    }
    y[thread_id()] = x[thread_id()];
}
// Writes one element behind the output.
KERNEL out_of_bounds(const float* x, float* y, const Params p) {
    y[thread_id() + 1 + block_id().x * THREADS] = x[thread_id()];
}
KERNEL shared_out_of_bounds(const float* x, float* y, const Params p) {
    float* numbers = dynamic_shared<float>();
    numbers[thread_id() + 1] = x[thread_id()];
    block_sync();
    y[thread_id()] = numbers[thread_id()];
}
// All blocks write one word.
KERNEL block_race(const float* x, float* y, const Params p) { y[0] = x[block_id().x]; }

KERNEL ballots(const float* x, float* y, const Params p) {
    unsigned odd = warp_ballot(lane_id() % 2 == 1);
    y[thread_id()] = odd == 0xaaaaaaaau ? x[thread_id()] : -1.0f;
}

// y = a b, 16 x 16 by 16 x 8: rows are halves in shared memory, fragments come by ldmatrix, results are stored by the
// map of the PTX manual written out. `swapped` plants a wrong lane map.
template <bool BF16> DEVICE void product(const float* a, const float* b, float* y, bool swapped) {
    unsigned short* halves = dynamic_shared<unsigned short>();
    for (unsigned i = thread_id(); i < 16 * 16 + 16 * 8; i += 32) {
        float v = i < 256 ? a[i] : b[i - 256];
        halves[i] = (unsigned short)(BF16 ? bits_of(v) >> 16 : f16_of_f32(v));
    }
    block_sync();
    unsigned lane = lane_id();
    unsigned x[4], w[2];
    ldmatrix<4>(x, halves + (lane % 16) * 16 + lane / 16 * 8);
    ldmatrix_transposed<2>(w, halves + 256 + (lane % 16) * 8);
    if (swapped) {
        unsigned keep = x[1];
        x[1] = x[2];
        x[2] = keep;
    }
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (BF16) {
        mma_bf16(c, x, w);
    } else {
        mma_f16(c, x, w);
    }
    unsigned row = lane / 4, column = 2 * (lane % 4);
    y[row * 8 + column] = c[0];
    y[row * 8 + column + 1] = c[1];
    y[(row + 8) * 8 + column] = c[2];
    y[(row + 8) * 8 + column + 1] = c[3];
}
KERNEL product_f16(const float* a, const float* b, float* y, const Params p) { product<false>(a, b, y, false); }
KERNEL product_bf16(const float* a, const float* b, float* y, const Params p) { product<true>(a, b, y, false); }
KERNEL wrong_map(const float* a, const float* b, float* y, const Params p) { product<false>(a, b, y, true); }

// y = a b in bytes: a is 16 x 32, b 8 columns of 32.
KERNEL product_s8(const unsigned* a, const unsigned* b, int* y, const Params p) {
    unsigned lane = lane_id(), row = lane / 4, word = lane % 4;
    unsigned x[4] = {a[row * 8 + word], a[(row + 8) * 8 + word], a[row * 8 + word + 4], a[(row + 8) * 8 + word + 4]};
    unsigned w[2] = {b[row * 8 + word], b[row * 8 + word + 4]};
    int c[4] = {0, 0, 0, 0};
    mma_s8(c, x, w);
    for (unsigned e = 0; e < 4; e++) {
        Place at = mma_c(lane, e);
        y[at.row * 8 + at.column] = c[e];
    }
}
