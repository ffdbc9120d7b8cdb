// Four channels of a cache row of q8_0: f16 scales, two a word, then 8 words of signed codes a block.
#include "lib/cache.cuh"

constexpr bool SELF_BF16 = true;
constexpr bool SELF_SCALED = true;
constexpr unsigned SELF_PLANES = 1u;

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    int codes = int(data[row + p.SELF_narrow + quad]);
    return {d * float((codes << 24) >> 24), d * float((codes << 16) >> 24), d * float((codes << 8) >> 24),
            d * float(codes >> 24)};
}

DEVICE void SELF_halves(uint2 (&to)[SELF_PLANES], const unsigned* row, const Params& p, unsigned quad) {
    unsigned codes = row[p.SELF_narrow + quad];
    to[0] = cache_bf16_of_bytes(codes & 0x7f7f7f7fu, codes & 0x80808080u);
}

DEVICE float SELF_scale(const unsigned* row, unsigned block) { return cache_scale(row, 8u * block); }
