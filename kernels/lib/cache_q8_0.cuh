// Four channels of a cache row of q8_0: f16 scales, two a word, then 8 words of signed codes a block.
#include "lib/cache.cuh"

DEVICE float4 SELF_quad(const unsigned* data, const Params& p, size_t row, unsigned quad) {
    float d = cache_scale(data + row, quad);
    int codes = int(data[row + p.SELF_narrow + quad]);
    return {d * float((codes << 24) >> 24), d * float((codes << 16) >> 24), d * float((codes << 8) >> 24),
            d * float(codes >> 24)};
}
