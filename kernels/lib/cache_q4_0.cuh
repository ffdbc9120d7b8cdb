// Four channels of a cache row of q4_0: f16 scales, two a word, then 4 words of nibbles a block.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = true;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    const unsigned* block = data + row + p.SELF_narrow + quad / 8u * 4u;
    return cache_codes(block[quad & 3u], 0u, quad, d, -8.0f * d);
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params& p, unsigned quad) {
    unsigned nibbles = row[p.SELF_narrow + quad / 8u * 4u + (quad & 3u)];
    to[0] = cache_bf16_of_bytes(cache_bytes(nibbles, 0u, quad), 0x08080808u);
}

DEVICE float SELF_scale(const unsigned* row, unsigned block) { return cache_scale(row, 8u * block); }
