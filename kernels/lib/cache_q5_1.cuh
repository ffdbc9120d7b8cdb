// Four channels of a cache row of q5_1: 6 words a block: f16 scale and minimum, the fifth bits in channel order,
// nibbles as in q4_0.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = false;
constexpr unsigned SELF_PLANES = 3u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* block = data + row + quad / 8u * 6u;
    return cache_codes(block[2u + (quad & 3u)], block[1], quad, f32_of_f16(block[0] & 0xffffu),
                       f32_of_f16(block[0] >> 16u));
}

// Scale times code and minimum may cancel, so that sums of either would be less exact than those of the values.
DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params& p, unsigned quad) {
    cache_planes(to, SELF_quad(row, p, 0u, quad));
}

DEVICE float SELF_scale(const unsigned*, unsigned) { return 1.0f; }
