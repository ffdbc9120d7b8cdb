// topk_blocks: the k best blocks of each row of scores that its token sees, in ascending order.
// topk_blocks_groups: one thread per group of neighbouring blocks finds its largest key.
// topk_blocks: one block of threads per row chooses the k best groups, compacts their blocks that may be among the k
// best, and chooses among these; everything in index order, so that the first of equals are taken. Bound by memory.
#include "lib/grid.cuh"
#include "lib/order.cuh"
#include "lib/rows.cuh"

// Complete blocks that the token of a row sees.
DEVICE unsigned candidates(const int* positions, const Params& p, unsigned row) {
    int position = positions[p.pos_off + row / p.n_per_token];
    if (position < 0) {
        return 0u;
    }
    unsigned complete = (unsigned(position) + 1u) / p.ratio;
    return complete < p.n ? complete : p.n;
}

DEVICE unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }

// Keys of the scores first .. first + 4 of a row, 0 for what is no candidate.
DEVICE void keys_of(unsigned (&keys)[4], const float* x, const Params& p, size_t x_row, unsigned first,
                    unsigned n_visible) {
    float4 v = x_quad(x, x_row, first, p.n);
    float four[4] = {v.x, v.y, v.z, v.w};
    for (unsigned e = 0u; e < 4u; e++) {
        unsigned key = order_key(bits_of(four[e]));
        keys[e] = key > KEY_NEG_INF && first + e < n_visible ? key : 0u;
    }
}

// `work`, by row: the groups' largest keys; the chosen groups; keys of their blocks; indices of these.
KERNEL topk_blocks_groups(const float* __restrict__ x, const int* __restrict__ positions, unsigned* __restrict__ work,
                          int* __restrict__, const Params p) {
    unsigned index = folded();
    unsigned row = index / p.n_parts;
    unsigned part = (index % p.n_parts) * THREADS + thread_id();
    if (row >= p.n_rows) {
        return;
    }
    size_t x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    unsigned* keys = work + size_t(row) * p.row_words;
    unsigned n_visible = candidates(positions, p, row);
    unsigned four[4];
    if (p.group == 1u) {
        // Four groups of one.
        if (4u * part < p.n_groups) {
            keys_of(four, x, p, x_row, 4u * part, n_visible);
            for (unsigned e = 0u; e < 4u && 4u * part + e < p.n_groups; e++) {
                keys[4u * part + e] = four[e];
            }
        }
        return;
    }
    if (part >= p.n_groups) {
        return;
    }
    unsigned end = least_of((part + 1u) * p.group, n_visible);
    unsigned best = 0u;
    for (unsigned i = part * p.group; i < end; i += 4u) {
        keys_of(four, x, p, x_row, i, n_visible);
        for (unsigned e = 0u; e < 4u; e++) {
            best = four[e] > best ? four[e] : best;
        }
    }
    keys[part] = best;
}

// The sum over all threads before this one, and over all of them.
DEVICE uint2 sum_before(unsigned value, unsigned thread) {
    SHARED unsigned sums[THREADS];
    block_sync();
    sums[thread] = value;
    for (unsigned n = 1u; n < THREADS; n *= 2u) {
        block_sync();
        unsigned before = thread >= n ? sums[thread - n] : 0u;
        block_sync();
        sums[thread] += before;
    }
    block_sync();
    return {sums[thread] - value, sums[THREADS - 1u]};
}

// The least and the largest of the threads' keys, and the sum of their counts.
DEVICE uint4 range_of(uint4 value, unsigned thread) {
    SHARED uint4 ranges[THREADS];
    block_sync();
    ranges[thread] = value;
    for (unsigned n = THREADS / 2u; n > 0u; n /= 2u) {
        block_sync();
        if (thread < n) {
            uint4 a = ranges[thread], b = ranges[thread + n];
            ranges[thread] = {a.x < b.x ? a.x : b.x, a.y > b.y ? a.y : b.y, a.z + b.z, 0u};
        }
    }
    block_sync();
    return ranges[0];
}

// Bits up to the highest that is set.
DEVICE unsigned width_of(unsigned x) {
    unsigned bits = 0u;
    for (unsigned step = 16u; step > 0u; step /= 2u) {
        if (x >> (bits + step) != 0u) {
            bits += step;
        }
    }
    return x == 0u ? 0u : bits + 1u;
}

// What decides whether a key is among the `need` largest of keys[0 .. n], or among a few more, up to `most`: larger
// than x, or equal to it and among the first y of those. Absent keys, 0, are never.
// A search by histograms: 256 bins over the range of the keys, then over the range of the bin that holds the last of
// those wanted, until that bin does no harm as a whole. Keys of scores are near each other: one round is the rule.
DEVICE uint2 bound_of(const unsigned* keys, unsigned n, unsigned need, unsigned most, unsigned thread) {
    SHARED unsigned bins[256];
    SHARED unsigned coarse[16];
    SHARED uint4 found;
    uint4 own = {0xffffffffu, 0u, 0u, 0u};
    for (unsigned i = thread; i < n; i += THREADS) {
        unsigned key = keys[i];
        if (key > 0u) {
            own = {key < own.x ? key : own.x, key > own.y ? key : own.y, own.z + 1u, 0u};
        }
    }
    uint4 range = range_of(own, thread);
    if (range.z <= most) {
        return {0u, 0u};
    }
    unsigned low = range.x, high = range.y, left = need;
    for (unsigned round = 0u; round < 4u; round++) {
        unsigned bits = width_of(high - low);
        unsigned shift = bits > 8u ? bits - 8u : 0u;
        for (unsigned i = thread; i < 256u; i += THREADS) {
            bins[i] = 0u;
        }
        block_sync();
        for (unsigned i = thread; i < n; i += THREADS) {
            unsigned key = keys[i];
            if (key >= low && key <= high) {
                atomic_add(&bins[(key - low) >> shift], 1u);
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
            unsigned rest = left;
            unsigned c = 15u;
            while (c > 0u && coarse[c] < rest) {
                rest -= coarse[c];
                c--;
            }
            unsigned bin = 16u * c + 15u;
            while (bin > 16u * c && bins[bin] < rest) {
                rest -= bins[bin];
                bin--;
            }
            found = {low + (bin << shift), rest, bins[bin], 0u};
        }
        block_sync();
        uint4 state = found;
        // The next round, or the next call, writes it.
        block_sync();
        low = state.x;
        left = state.y;
        if (need - left + state.z <= most) {
            return {low - 1u, 0u};
        }
        if (shift == 0u) {
            return {low, left};
        }
        unsigned last = low + (1u << shift) - 1u;
        high = last < high ? last : high;
    }
    // Not reached: four rounds of eight bits end with a shift of 0.
    return {low, left};
}

// Calls `put(place, index)` for the keys[0 .. n] that the bound lets through, in order. Returns how many there are.
template <class Put>
DEVICE unsigned emit(const unsigned* keys, unsigned n, uint2 bound, unsigned thread, Put put) {
    // Each thread owns neighbours, so that threads in order are keys in order.
    unsigned share = (n + THREADS - 1u) / THREADS;
    unsigned from_item = least_of(thread * share, n);
    unsigned end_item = least_of(from_item + share, n);
    unsigned larger = 0u;
    unsigned equal = 0u;
    for (unsigned i = from_item; i < end_item; i++) {
        larger += keys[i] > bound.x ? 1u : 0u;
        equal += keys[i] == bound.x && keys[i] > 0u ? 1u : 0u;
    }
    unsigned equal_before = sum_before(equal, thread).x;
    unsigned equal_kept = least_of(equal, bound.y > equal_before ? bound.y - equal_before : 0u);
    uint2 places = sum_before(larger + equal_kept, thread);
    unsigned place = places.x;
    for (unsigned i = from_item; i < end_item; i++) {
        bool is_equal = keys[i] == bound.x && equal_kept > 0u;
        if (keys[i] > bound.x || is_equal) {
            put(place, i);
            place++;
            equal_kept -= is_equal ? 1u : 0u;
        }
    }
    return places.y;
}

KERNEL topk_blocks(const float* __restrict__ x, const int* __restrict__ positions, unsigned* work,
                   int* __restrict__ selection, const Params p) {
    unsigned thread = thread_id();
    unsigned row = folded();
    if (row >= p.n_rows) {
        return;
    }
    int* y_row = selection + row_offset(row, p.y_n1, p.y_s0, p.y_s1, p.y_off);
    unsigned* keys = work + size_t(row) * p.row_words;
    unsigned n_visible = candidates(positions, p, row);
    unsigned n_groups = (n_visible + p.group - 1u) / p.group;
    unsigned n_found = 0u;
    if (p.group == 1u) {
        uint2 bound = bound_of(keys, n_groups, p.k, p.k, thread);
        n_found = emit(keys, n_groups, bound, thread, [&](unsigned place, unsigned i) {
            if (place < p.k) {
                y_row[place] = int(i);
            }
        });
    } else {
        unsigned* chosen = keys + p.n_groups;
        uint2 bound = bound_of(keys, n_groups, p.k, p.n_chosen, thread);
        unsigned n_chosen =
            emit(keys, n_groups, bound, thread, [&](unsigned place, unsigned i) { chosen[place] = i; });
        block_sync();
        // Blocks with keys below the last chosen group's are beaten by k others. Without a bound all count.
        unsigned least = bound.x + (bound.y == 0u ? 1u : 0u);
        least = least > 1u ? least : 1u;
        size_t x_row = row_offset(row, p.x_n1, p.x_s0, p.x_s1, p.x_off);
        unsigned share = (n_chosen + THREADS - 1u) / THREADS;
        unsigned from_item = least_of(thread * share, n_chosen);
        unsigned end_item = least_of(from_item + share, n_chosen);
        unsigned four[4];
        unsigned n_mine = 0u;
        for (unsigned i = from_item; i < end_item; i++) {
            unsigned id = chosen[i] * p.group;
            for (unsigned e = id; e < least_of(id + p.group, n_visible); e += 4u) {
                keys_of(four, x, p, x_row, e, n_visible);
                for (unsigned j = 0u; j < 4u; j++) {
                    n_mine += four[j] >= least ? 1u : 0u;
                }
            }
        }
        uint2 places = sum_before(n_mine, thread);
        unsigned* kept = chosen + p.n_chosen;
        unsigned* ids = kept + p.n_chosen * p.group;
        unsigned place = places.x;
        for (unsigned i = from_item; i < end_item; i++) {
            unsigned id = chosen[i] * p.group;
            for (unsigned e = id; e < least_of(id + p.group, n_visible); e += 4u) {
                keys_of(four, x, p, x_row, e, n_visible);
                for (unsigned j = 0u; j < 4u; j++) {
                    if (four[j] >= least) {
                        kept[place] = four[j];
                        ids[place] = e + j;
                        place++;
                    }
                }
            }
        }
        block_sync();
        uint2 last = bound_of(kept, places.y, p.k, p.k, thread);
        n_found = emit(kept, places.y, last, thread, [&](unsigned at, unsigned i) {
            if (at < p.k) {
                y_row[at] = int(ids[i]);
            }
        });
    }
    for (unsigned i = n_found + thread; i < p.k; i += THREADS) {
        y_row[i] = -1;
    }
}
