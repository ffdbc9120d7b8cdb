// Four channels of a cache row of q4_0: f16 scales, two a word, then 4 words of nibbles a block.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    const unsigned* block = data + row + p.SELF_narrow + quad / 8u * 4u;
    return cache_codes(block[quad & 3u], 0u, quad, d, -8.0f * d);
}
