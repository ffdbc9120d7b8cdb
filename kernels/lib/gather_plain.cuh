// gather_plain: rows of f32 activations.
#include "lib/rows.cuh"

// Elements `4 * quad ..` of a row; elements behind its end read as zero.
DEVICE float4 SELF_quad(const unsigned* data, const unsigned*, const Params& p, unsigned row, unsigned quad) {
    unsigned i = 4u * quad;
    const unsigned* at = data + row_offset(row, p.w_n1, p.w_s0, p.w_s1, p.w_off) + i;
    return {float_of(at[0]), i + 1u < p.n ? float_of(at[1]) : 0.0f, i + 2u < p.n ? float_of(at[2]) : 0.0f,
            i + 3u < p.n ? float_of(at[3]) : 0.0f};
}
