// moe_route: chooses the experts of each token and their weights.
// One block per token. Scores lie in shared memory; an expert's place is the number of experts that go before it, so
// nothing is sorted and the order of threads does not matter. LEN is the number of experts, rounded up. Bound by the
// start of the launch: a token is n_experts^2 / THREADS comparisons a thread.
#include "lib/grid.cuh"
#include "lib/numeric.cuh"
#include "lib/order.cuh"
#include "lib/reduce.cuh"

constexpr unsigned MAX_K = 32u;
constexpr unsigned MAX_GROUPS = 64u;
constexpr float LEAST_SUM = 1.0f / 16384.0f;

// Logits of experts that nobody wants, and their scores.
constexpr float DEAD = -1.0e38f;
constexpr float LAST = -1.0e30f;

// Keys of experts of excluded groups, and of experts that nobody wants: below those of all finite numbers.
constexpr unsigned KEY_EXCLUDED = 0u;
constexpr unsigned KEY_DEAD = 1u;

// The logit of expert `e`, DEAD where it is NaN or below.
DEVICE float logit(const unsigned* row, unsigned e) {
    unsigned bits = row[e];
    return order_key(bits) == KEY_NAN ? DEAD : fminf(fmaxf(float_of(bits), DEAD), -DEAD);
}

// exp(l - largest), 0 for dead experts.
DEVICE float exp_of(float l, float largest) { return l <= DEAD ? 0.0f : exp_neg(fminf(l - largest, 0.0f)); }

DEVICE float sqrt_softplus(float l) {
    // Far below zero the root of exp(l) is left.
    if (l < -20.0f) {
        return exp_neg(0.5f * l);
    }
    return sqrtf(fmaxf(l, 0.0f) + log1pf(exp_neg(-fabsf(l))));
}

// What an expert counts before the bias.
DEVICE float gated(float l, float largest, float sum) {
    switch (GATE) {
    case 0u: // softmax
        return exp_of(l, largest) / sum;
    case 1u: // sigmoid
        return sigmoid(l);
    case 2u: // sqrt_softplus
        return sqrt_softplus(l);
    default: // softmax_after
        return l;
    }
}

// The probability of a chosen expert.
DEVICE float weight(float l, float largest, float sum) {
    if (l <= DEAD) {
        return 0.0f;
    }
    return GATE == 3u ? exp_of(l, largest) / sum : gated(l, largest, sum);
}

DEVICE float block_max(float value, unsigned thread) {
    SHARED float part[THREADS];
    part[thread] = value;
    for (unsigned n = THREADS / 2u; n > 0u; n /= 2u) {
        block_sync();
        if (thread < n) {
            part[thread] = fmaxf(part[thread], part[thread + n]);
        }
    }
    block_sync();
    return part[0];
}

KERNEL moe_route(const unsigned* __restrict__ logits, const float* __restrict__ bias, int* __restrict__ ids,
                 float* __restrict__ weights, const Params p) {
    SHARED float score_of[LEN];
    SHARED unsigned key_of[LEN];
    SHARED unsigned group_key[MAX_GROUPS];
    SHARED unsigned chosen[MAX_K];
    unsigned thread = thread_id();
    unsigned t = folded();
    if (t >= p.n_tokens) {
        return;
    }
    const unsigned* row = logits + p.x_off + size_t(t) * p.x_s;
    float largest = DEAD, sum = 1.0f;
    if (GATE == 0u) {
        for (unsigned e = thread; e < p.n_experts; e += THREADS) {
            largest = fmaxf(largest, logit(row, e));
        }
        largest = block_max(largest, thread);
        sum = 0.0f;
        for (unsigned e = thread; e < p.n_experts; e += THREADS) {
            sum += exp_of(logit(row, e), largest);
        }
        // Zero where there is no live expert, and then so are all quotients.
        sum = fmaxf(block_sum(sum, thread), 1.0e-30f);
    }
    for (unsigned e = thread; e < p.n_experts; e += THREADS) {
        float l = logit(row, e);
        float score = gated(l, largest, sum);
        if (p.has_bias == 1u) {
            score += bias[e];
        }
        // Gates keep the order of logits, but may round neighbours to one value.
        float ranked = p.has_bias == 1u ? score : l;
        score_of[e] = l <= DEAD ? LAST : score;
        key_of[e] = l <= DEAD ? KEY_DEAD : order_key(bits_of(ranked));
    }
    block_sync();

    unsigned size = p.n_experts / p.groups;
    if (p.groups > 1u) {
        for (unsigned g = thread; g < p.groups; g += THREADS) {
            float best = 2.0f * LAST, second = best;
            for (unsigned e = g * size; e < (g + 1u) * size; e++) {
                float s = score_of[e];
                second = fmaxf(second, fminf(best, s));
                best = fmaxf(best, s);
            }
            group_key[g] = order_key(bits_of(size > 1u ? best + second : best));
        }
        block_sync();
        for (unsigned e = thread; e < p.n_experts; e += THREADS) {
            unsigned own = e / size;
            unsigned before = 0u;
            for (unsigned g = 0u; g < p.groups; g++) {
                unsigned other = group_key[g];
                before += other > group_key[own] || (other == group_key[own] && g < own) ? 1u : 0u;
            }
            if (before >= p.groups_used) {
                key_of[e] = KEY_EXCLUDED;
            }
        }
        block_sync();
    }

    for (unsigned e = thread; e < p.n_experts; e += THREADS) {
        unsigned key = key_of[e];
        unsigned place = 0u;
        for (unsigned other = 0u; other < p.n_experts; other++) {
            place += key_of[other] > key || (key_of[other] == key && other < e) ? 1u : 0u;
        }
        if (place < p.k) {
            chosen[place] = e;
        }
    }
    block_sync();

    // Every thread sums all weights in the same order; there are few.
    if (GATE == 3u) {
        largest = DEAD;
        for (unsigned i = 0u; i < p.k; i++) {
            largest = fmaxf(largest, logit(row, chosen[i]));
        }
        sum = 0.0f;
        for (unsigned i = 0u; i < p.k; i++) {
            sum += exp_of(logit(row, chosen[i]), largest);
        }
        sum = fmaxf(sum, 1.0e-30f);
    }
    float total = 0.0f;
    for (unsigned i = 0u; i < p.k; i++) {
        total += weight(logit(row, chosen[i]), largest, sum);
    }
    float factor = p.normalize == 1u ? fmaxf(total, LEAST_SUM) : 1.0f;
    for (unsigned i = thread; i < p.k; i += THREADS) {
        ids[size_t(t) * p.k + i] = int(chosen[i]);
        weights[size_t(t) * p.k + i] = weight(logit(row, chosen[i]), largest, sum) / factor * p.scale;
    }
}
