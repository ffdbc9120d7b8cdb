// ngram_hash: rows of an n-gram embedding table by hashing the last tokens.
// One thread per token and head. Bound by the start of the launch.
#include "lib/grid.cuh"

KERNEL ngram_hash(const int* __restrict__ ids, const unsigned* __restrict__ multipliers,
                  const unsigned* __restrict__ heads, int* __restrict__ y, const Params p) {
    unsigned index = folded() * THREADS + thread_id();
    if (index >= p.n_rows) {
        return;
    }
    unsigned token = index / p.n_heads, head = index % p.n_heads;
    unsigned length = head / p.n_heads_per_ngram + 2u;
    unsigned long long mixed = 0;
    bool is_cut = false;
    for (unsigned j = 0; j < length; j++) {
        int id = ids[size_t(token) * p.n_ids + j];
        // Once a predecessor is missing or ends a text, all earlier ones read as that end.
        if (j > 0u) {
            is_cut = is_cut || id < 0 || id == p.eos;
            id = is_cut ? p.eos : id;
        }
        unsigned long long multiplier = multipliers[2 * j] | (unsigned long long)(multipliers[2 * j + 1]) << 32;
        mixed ^= (unsigned long long)(unsigned(id)) * multiplier;
    }
    unsigned size = heads[2 * head];
    y[index] = size > 0u && size < 0x80000000u ? int(unsigned(mixed % size) + heads[2 * head + 1]) : -1;
}
