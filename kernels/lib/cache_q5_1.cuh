// Four channels of a cache row of q5_1: 6 words a block: f16 scale and minimum, the fifth bits in channel order,
// nibbles as in q4_0.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* block = data + row + quad / 8u * 6u;
    return cache_codes(block[2u + (quad & 3u)], block[1], quad, f32_of_f16(block[0] & 0xffffu),
                       f32_of_f16(block[0] >> 16u));
}
