// causal_conv: a short convolution along the tokens of each sequence, with a ring of raw inputs as memory.
// A thread owns one channel of one token. SILU: an activation follows. KEEP: the input goes to the ring as well, which
// holds rows enough that no other thread still reads that place; otherwise causal_conv_keep does it afterwards.
// Bound by memory: the rows of neighbouring taps come from the second-level cache.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/runs.cuh"

// Where the ring keeps a channel of a position.
DEVICE size_t kept(const Params& p, unsigned slot, unsigned position, unsigned channel) {
    return (size_t(slot) * p.depth + position % p.depth) * p.n_channels + channel;
}

KERNEL causal_conv(const float* __restrict__ x, const float* __restrict__ w, const int* __restrict__ runs,
                   float* __restrict__ ring, float* __restrict__ y, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    if (index >= p.n_items) {
        return;
    }
    unsigned row = index / p.n_channels;
    unsigned channel = index % p.n_channels;
    Run run = run_of(runs, p, row);
    if (run.n_rows == 0u) {
        y[index] = 0.0f;
        return;
    }
    unsigned t = row - run.first;
    unsigned position = run.position + t;
    const float* taps = w + p.w_off + size_t(channel) * p.n_taps;
    float sum = 0.0f;
    for (unsigned k = 0u; k < p.n_taps; k++) {
        unsigned back = (p.n_taps - 1u - k) * p.dilation;
        float z = 0.0f;
        if (back <= t) {
            z = x[p.x_off + size_t(row - back) * p.x_s + channel];
        } else if (back <= position) {
            z = ring[kept(p, run.slot, position - back, channel)];
        }
        sum += taps[k] * z;
    }
    y[index] = SILU ? sum * sigmoid(fminf(fmaxf(sum, -128.0f), 128.0f)) : sum;
    if (KEEP) {
        ring[kept(p, run.slot, position, channel)] = x[p.x_off + size_t(row) * p.x_s + channel];
    }
}

KERNEL causal_conv_keep(const float* __restrict__ x, const float* __restrict__, const int* __restrict__ runs,
                        float* __restrict__ ring, float* __restrict__, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    if (index >= p.n_items) {
        return;
    }
    unsigned row = index / p.n_channels;
    unsigned channel = index % p.n_channels;
    Run run = run_of(runs, p, row);
    // Of a run longer than the ring the last rows stay.
    if (run.n_rows > 0u && row - run.first + p.depth >= run.n_rows) {
        ring[kept(p, run.slot, run.position + row - run.first, channel)] = x[p.x_off + size_t(row) * p.x_s + channel];
    }
}
