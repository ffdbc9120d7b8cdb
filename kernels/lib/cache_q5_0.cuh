// Four channels of a cache row of q5_0: f16 scales, two a word, then 5 words a block: the fifth bits in channel order,
// nibbles as in q4_0.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = true;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    const unsigned* block = data + row + p.SELF_narrow + quad / 8u * 5u;
    return cache_codes(block[1u + (quad & 3u)], block[0], quad, d, -16.0f * d);
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params& p, unsigned quad) {
    const unsigned* block = row + p.SELF_narrow + quad / 8u * 5u;
    to[0] = cache_bf16_of_bytes(cache_bytes(block[1u + (quad & 3u)], block[0], quad), 0x10101010u);
}

DEVICE float SELF_scale(const unsigned* row, unsigned block) { return cache_scale(row, 8u * block); }
