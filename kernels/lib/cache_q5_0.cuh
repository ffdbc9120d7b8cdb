// Four channels of a cache row of q5_0: f16 scales, two a word, then 5 words a block: the fifth bits in channel order,
// nibbles as in q4_0.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    const unsigned* block = data + row + p.SELF_narrow + quad / 8u * 5u;
    return cache_codes(block[1u + (quad & 3u)], block[0], quad, d, -16.0f * d);
}
