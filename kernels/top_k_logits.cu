// top_k_logits: the k largest elements of each row with their indices, largest first.
// top_k_logits_groups: one thread per group of neighbouring elements finds its largest key.
// top_k_logits: one block per row selects the k best groups, then the k best elements of these; both in index order,
// so that the first of equals are taken. At last each element counts those before it. Bound by memory.
#include "lib/grid.cuh"
#include "lib/order.cuh"
#include "lib/rows.cuh"

constexpr unsigned MAX_K = 1024u;

// `work`: keys, by row: the groups' largest, then the elements of the selected groups.
KERNEL top_k_logits_groups(const unsigned* __restrict__ x, unsigned* __restrict__ work, unsigned* __restrict__,
                           unsigned* __restrict__, const Params p) {
    unsigned index = folded();
    unsigned row = index / p.n_blocks;
    unsigned group = (index % p.n_blocks) * THREADS + thread_id();
    if (row >= p.n_rows || group >= p.n_groups) {
        return;
    }
    const unsigned* x_row = x + row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    unsigned end = (group + 1u) * p.group < p.n ? (group + 1u) * p.group : p.n;
    unsigned best = 0u;
    for (unsigned i = group * p.group; i < end; i++) {
        unsigned key = order_key(x_row[i]);
        best = key > best ? key : best;
    }
    work[size_t(row) * (p.n_groups + p.n_candidates) + group] = best;
}

// The sum over all threads before this one.
DEVICE unsigned sum_before(unsigned value, unsigned thread) {
    SHARED unsigned sums[THREADS];
    block_sync();
    sums[thread] = value;
    for (unsigned n = 1u; n < THREADS; n *= 2u) {
        block_sync();
        unsigned before = thread >= n ? sums[thread - n] : 0u;
        block_sync();
        sums[thread] += before;
    }
    return sums[thread] - value;
}

// The `need`-th largest of the keys work[0 .. n], and how many keys equal to it are among the `need` largest.
// A radix search: eight bits a round, from the top.
DEVICE uint2 nth_key(const unsigned* work, unsigned n, unsigned need, unsigned thread) {
    SHARED unsigned bins[256];
    SHARED unsigned coarse[16];
    SHARED uint2 found;
    uint2 state = {0u, need};
    unsigned mask = 0u;
    for (unsigned digit = 0u; digit < 4u; digit++) {
        unsigned shift = 24u - 8u * digit;
        for (unsigned i = thread; i < 256u; i += THREADS) {
            bins[i] = 0u;
        }
        block_sync();
        for (unsigned i = thread; i < n; i += THREADS) {
            unsigned key = work[i];
            if ((key & mask) == state.x) {
                atomic_add(&bins[(key >> shift) & 255u], 1u);
            }
        }
        block_sync();
        for (unsigned i = thread; i < 16u; i += THREADS) {
            unsigned sum = 0u;
            for (unsigned j = 0u; j < 16u; j++) {
                sum += bins[16u * i + j];
            }
            coarse[i] = sum;
        }
        block_sync();
        if (thread == 0u) {
            unsigned left = state.y;
            unsigned c = 15u;
            while (c > 0u && coarse[c] < left) {
                left -= coarse[c];
                c--;
            }
            unsigned bin = 16u * c + 15u;
            while (bin > 16u * c && bins[bin] < left) {
                left -= bins[bin];
                bin--;
            }
            found = {state.x | (bin << shift), left};
        }
        block_sync();
        state = found;
        mask |= 255u << shift;
    }
    return state;
}

KERNEL top_k_logits(const unsigned* __restrict__ x, unsigned* work, unsigned* __restrict__ ids,
                    unsigned* __restrict__ values, const Params p) {
    SHARED unsigned groups[MAX_K];
    SHARED unsigned kept_key[MAX_K];
    SHARED unsigned kept_id[MAX_K];
    unsigned thread = thread_id();
    unsigned row = folded();
    if (row >= p.n_rows) {
        return;
    }
    const unsigned* x_row = x + row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    unsigned* row_work = work + size_t(row) * (p.n_groups + p.n_candidates);
    for (unsigned stage = 0u; stage < 2u; stage++) {
        unsigned* keys = row_work + stage * p.n_groups;
        unsigned n = stage == 1u ? p.n_candidates : p.n_groups;
        unsigned need = stage == 1u || p.k < p.n_groups ? p.k : p.n_groups;
        if (stage == 1u) {
            for (unsigned i = thread; i < p.n_candidates; i += THREADS) {
                unsigned id = groups[i / p.group] * p.group + i % p.group;
                // 0: no element; there are k others.
                keys[i] = id < p.n ? order_key(x_row[id]) : 0u;
            }
            block_sync();
        }
        uint2 nth = nth_key(keys, n, need, thread);
        // Each thread now owns neighbours, so that threads in order are elements in order.
        unsigned share = (n + THREADS - 1u) / THREADS;
        unsigned from_item = thread * share < n ? thread * share : n;
        unsigned end_item = from_item + share < n ? from_item + share : n;
        unsigned larger = 0u;
        unsigned equal = 0u;
        for (unsigned i = from_item; i < end_item; i++) {
            larger += keys[i] > nth.x ? 1u : 0u;
            equal += keys[i] == nth.x ? 1u : 0u;
        }
        unsigned equal_before = sum_before(equal, thread);
        unsigned left = nth.y > equal_before ? nth.y - equal_before : 0u;
        unsigned equal_kept = equal < left ? equal : left;
        unsigned place = sum_before(larger + equal_kept, thread);
        for (unsigned i = from_item; i < end_item; i++) {
            unsigned key = keys[i];
            bool is_equal = key == nth.x && equal_kept > 0u;
            if ((key > nth.x || is_equal) && place < MAX_K) {
                if (stage == 0u) {
                    groups[place] = i;
                } else {
                    kept_key[place] = key;
                    kept_id[place] = groups[i / p.group] * p.group + i % p.group;
                }
                place++;
                equal_kept -= is_equal ? 1u : 0u;
            }
        }
        block_sync();
    }
    for (unsigned i = thread; i < p.k; i += THREADS) {
        unsigned key = kept_key[i];
        unsigned rank = 0u;
        for (unsigned j = 0u; j < p.k; j++) {
            unsigned other = kept_key[j];
            rank += other > key || (other == key && j < i) ? 1u : 0u;
        }
        ids[size_t(row) * p.k + rank] = kept_id[i];
        values[size_t(row) * p.k + rank] = x_row[kept_id[i]];
    }
}
