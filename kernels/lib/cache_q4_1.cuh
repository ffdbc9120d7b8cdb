// Four channels of a cache row of q4_1: 5 words a block: f16 scale and minimum, then nibbles as in q4_0.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = true;
constexpr bool SELF_RANGED = true;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    const unsigned* block = data + row + quad / 8u * 5u;
    return cache_codes(block[1u + (quad & 3u)], 0u, quad, f32_of_f16(block[0] & 0xffffu), f32_of_f16(block[0] >> 16u));
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params&, unsigned quad) {
    unsigned nibbles = row[quad / 8u * 5u + 1u + (quad & 3u)];
    to[0] = cache_bf16_of_bytes(cache_bytes(nibbles, 0u, quad), 0u);
}

DEVICE float2 SELF_scales(const unsigned* row, const Params&, unsigned block) {
    unsigned pair = row[5u * block];
    return {f32_of_f16(pair & 0xffffu), f32_of_f16(pair >> 16u)};
}
