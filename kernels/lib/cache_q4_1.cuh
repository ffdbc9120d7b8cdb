// Four channels of a cache row of q4_1: 5 words a block: f16 scale and minimum, then nibbles as in q4_0.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* block = data + row + quad / 8u * 5u;
    return cache_codes(block[1u + (quad & 3u)], 0u, quad, f32_of_f16(block[0] & 0xffffu), f32_of_f16(block[0] >> 16u));
}
