// index_pool: the pooled key of each block of tokens that the step completes.
// LANES threads own a token, THREADS / LANES tokens a block; threads of tokens that complete nothing only take part in
// the barriers. The mean of the stored keys goes to shared memory, is normalised there, and rotated while it is stored.
// Bound by memory.
#include "lib/f16_bits.cuh"
#include "lib/grid.cuh"
#include "lib/reduce.cuh"

constexpr unsigned FINE = 256u;
constexpr unsigned PAGE = 64u;
constexpr unsigned NONE = 0xffffffffu;
constexpr unsigned TOKENS = THREADS / LANES;

// The page whose block a token completes, or NONE.
DEVICE unsigned completed_page(const int* page_table, const int* seq_rows, const int* positions, const Params& p,
                               unsigned token) {
    if (token >= p.n_tokens) {
        return NONE;
    }
    int position = positions[p.pos_off + token];
    int seq = seq_rows[p.seq_off + token];
    if (position < 0 || seq < 0 || unsigned(seq) >= p.n_seq_rows) {
        return NONE;
    }
    unsigned ordinal = unsigned(position) / PAGE;
    if ((unsigned(position) + 1u) % p.ratio != 0u || ordinal >= p.max_pages) {
        return NONE;
    }
    int page = page_table[p.table_off + size_t(unsigned(seq)) * p.max_pages + ordinal];
    return page >= 0 && unsigned(page) < p.n_pages ? unsigned(page) : NONE;
}

// Channel i of a normalised key, rotated.
DEVICE float rotated(const float* key, const float2* rope_table, const Params& p, unsigned i, unsigned position) {
    if (i >= 2u * p.pairs) {
        return key[i];
    }
    // Pairs are neighbours, or half of the rotated channels apart.
    bool neighbours = p.first == 2u;
    unsigned pair = neighbours ? i / 2u : i % p.pairs;
    bool is_second = neighbours ? i % 2u == 1u : i >= p.pairs;
    unsigned coarse_row = position / FINE;
    float2 r = {0.0f, 0.0f};
    if (coarse_row < p.n_coarse) {
        float2 fine = rope_table[(position % FINE) * p.pairs + pair];
        float2 coarse = rope_table[(FINE + coarse_row) * p.pairs + pair];
        r = {coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y};
    }
    float x0 = key[pair * p.first];
    float x1 = key[pair * p.first + p.second];
    return is_second ? x0 * r.y + x1 * r.x : x0 * r.x - x1 * r.y;
}

KERNEL index_pool(const unsigned* __restrict__ raw_data, const float* __restrict__ w,
                  const float2* __restrict__ rope_table, const int* __restrict__ page_table,
                  const int* __restrict__ seq_rows, const int* __restrict__ positions, unsigned* __restrict__ pooled,
                  const Params p) {
    SHARED float keys[TOKENS][DIM_LEN];
    unsigned thread = thread_id();
    unsigned slot = thread / LANES;
    unsigned lane = thread % LANES;
    float* key = keys[slot];
    unsigned token = folded() * TOKENS + slot;
    unsigned page = completed_page(page_table, seq_rows, positions, p, token);
    bool completes = page != NONE;
    unsigned dim = completes ? p.dim : 0u;
    unsigned first = completes ? unsigned(positions[p.pos_off + token]) + 1u - p.ratio : 0u;
    float squares = 0.0f;
    for (unsigned quad = lane; quad < dim / 4u; quad += LANES) {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        for (unsigned i = 0u; i < p.ratio; i++) {
            float4 v = raw_quad(raw_data, p, (size_t(page) * PAGE + first % PAGE + i) * p.raw_words, quad);
            sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
        }
        float n = float(p.ratio);
        sum = {sum.x / n, sum.y / n, sum.z / n, sum.w / n};
        squares += sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w;
        key[4u * quad] = sum.x;
        key[4u * quad + 1u] = sum.y;
        key[4u * quad + 2u] = sum.z;
        key[4u * quad + 3u] = sum.w;
    }
    float mean = group_sum(squares, thread, LANES) / float(p.dim);
    // A key of zeros with eps = 0 stays zero.
    float scale = mean + p.eps > 0.0f ? 1.0f / sqrtf(mean + p.eps) : 0.0f;
    block_sync();
    for (unsigned i = lane; i < dim; i += LANES) {
        key[i] *= scale * w[i];
    }
    block_sync();
    if (!completes) {
        return;
    }
    unsigned page_blocks = PAGE / p.ratio;
    size_t row = (size_t(page) * page_blocks + (first / p.ratio) % page_blocks) * p.pooled_words;
    for (unsigned word = lane; word < p.pooled_words; word += LANES) {
        if (BITS == 32u) {
            pooled[row + word] = finite_bits(bits_of(rotated(key, rope_table, p, word, first)));
        } else {
            float low = rotated(key, rope_table, p, 2u * word, first);
            float high = rotated(key, rope_table, p, 2u * word + 1u, first);
            pooled[row + word] =
                BF16 ? bf16_bits(low) | (bf16_bits(high) << 16u) : f16_bits(low) | (f16_bits(high) << 16u);
        }
    }
}
