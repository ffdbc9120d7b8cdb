// matmul: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o], weights decoded exactly, products and sums in f32.
// A thread owns four rows of w and every KSPLIT-th quad of columns, for TOKENS tokens; QUADS * KSPLIT threads are a
// block. The order of a sum depends on KSPLIT alone, so a row's bits do not depend on the other rows. Bound by memory.
// matmul_tile: 64 rows of w by 64 tokens a block, decoded through shared memory; a thread owns 4 by 4 results.
#include "lib/grid.cuh"
#include "lib/rows.cuh"
#include "lib/tile.cuh"

// Four columns of a row of the bound window, zero behind its end.
DEVICE float4 weights(const unsigned* w_data, const unsigned* w_table, const Params& p, unsigned row, unsigned quad) {
    constexpr unsigned TILE_QUADS = 4u * w_RUNS;
    const unsigned* tile = w_data + size_t(row / 8u) * p.w_group * w_STEP + size_t(quad / TILE_QUADS) * w_TILE;
    unsigned in_tile = quad % TILE_QUADS;
    float4 v = w_quad(tile, w_table, row % 8u, in_tile);
    if (w_SCALED) {
        Scale scale = w_scale(tile, w_table, row % 8u, in_tile / 4u);
        float b = w_MIN ? scale.b : 0.0f;
        v = {v.x * scale.a + b, v.y * scale.a + b, v.z * scale.a + b, v.w * scale.a + b};
    }
    // Rows of plain types end inside a quad; what lies behind must not meet the zeros of x, even as 0 * NaN.
    unsigned left = p.n - 4u * quad;
    return {v.x, left > 1u ? v.y : 0.0f, left > 2u ? v.z : 0.0f, left > 3u ? v.w : 0.0f};
}

DEVICE size_t x_start(const Params& p, unsigned t) {
    unsigned token = t < p.n_tokens ? t : p.n_tokens - 1u;
    return row_offset(token, p.x_n1, p.x_s0, p.x_s1, p.x_off);
}

DEVICE void store(const float* bias, float* y, const Params& p, unsigned t, unsigned row, float sum) {
    if (t < p.n_tokens && row < p.n_rows) {
        float out = sum * p.scale;
        y[size_t(t) * p.d_out + p.row0 + row] = p.has_bias == 1u ? out + bias[p.row0 + row] : out;
    }
}

DEVICE float dot(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

KERNEL matmul(const float* __restrict__ x_data, const unsigned* __restrict__ w_data,
              const unsigned* __restrict__ w_table, const float* __restrict__ bias, float* __restrict__ y,
              const Params p) {
    SHARED float4 sums[THREADS];
    // Blocks of the same rows are neighbours, so that the weights stay in the cache.
    unsigned index = folded();
    unsigned n_token_blocks = (p.n_tokens + TOKENS - 1u) / TOKENS;
    unsigned row_block = index / n_token_blocks;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    unsigned thread = thread_id();
    unsigned first = (index % n_token_blocks) * TOKENS;
    unsigned row = 4u * (row_block * QUADS + thread % QUADS);
    float sum[TOKENS][4] = {};
    for (unsigned quad = thread / QUADS; 4u * quad < p.n; quad += KSPLIT) {
        float4 w[4];
        for (unsigned r = 0u; r < 4u; r++) {
            // Rows behind the end repeat the last and are not stored.
            w[r] = weights(w_data, w_table, p, row + r < p.n_rows ? row + r : p.n_rows - 1u, quad);
        }
        for (unsigned t = 0u; t < TOKENS; t++) {
            float4 x = v_quad(x_data, x_start(p, first + t), 4u * quad, p.n);
            for (unsigned r = 0u; r < 4u; r++) {
                sum[t][r] = dot(w[r], x, sum[t][r]);
            }
        }
    }
    for (unsigned t = 0u; t < TOKENS; t++) {
        block_sync();
        sums[thread] = {sum[t][0], sum[t][1], sum[t][2], sum[t][3]};
        for (unsigned n = KSPLIT / 2u; n > 0u; n /= 2u) {
            block_sync();
            if (thread < n * QUADS) {
                float4 a = sums[thread], b = sums[thread + n * QUADS];
                sums[thread] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
            }
        }
        // The first QUADS threads made the last sums themselves.
        if (thread < QUADS) {
            float4 total = sums[thread];
            store(bias, y, p, first + t, row, total.x);
            store(bias, y, p, first + t, row + 1u, total.y);
            store(bias, y, p, first + t, row + 2u, total.z);
            store(bias, y, p, first + t, row + 3u, total.w);
        }
    }
}

KERNEL matmul_tile(const float* __restrict__ x_data, const unsigned* __restrict__ w_data,
                   const unsigned* __restrict__ w_table, const float* __restrict__ bias, float* __restrict__ y,
                   const Params p) {
    constexpr unsigned TILE = 64u, COLUMNS = 32u;
    SHARED float w_part[COLUMNS][TILE + 1u]; // column -> rows of w
    SHARED float x_part[COLUMNS][TILE + 1u]; // column -> tokens
    unsigned index = folded();
    unsigned n_token_blocks = (p.n_tokens + TILE - 1u) / TILE;
    unsigned row_block = index / n_token_blocks;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    unsigned thread = thread_id();
    unsigned first = (index % n_token_blocks) * TILE;
    unsigned first_row = TILE * row_block;
    unsigned own_row = thread % 16u, own_token = thread / 16u;
    float sum[4][4] = {};
    for (unsigned column = 0u; column < p.n; column += COLUMNS) {
        for (unsigned job = thread; job < TILE * COLUMNS / 4u; job += THREADS) {
            unsigned at = job % TILE, quad = job / TILE;
            float4 w = {0.0f, 0.0f, 0.0f, 0.0f};
            float4 x = w;
            if (column + 4u * quad < p.n) {
                unsigned row = first_row + at < p.n_rows ? first_row + at : p.n_rows - 1u;
                w = weights(w_data, w_table, p, row, column / 4u + quad);
                x = x_quad(x_data, x_start(p, first + at), column + 4u * quad, p.n);
            }
            float w_of[4] = {w.x, w.y, w.z, w.w}, x_of[4] = {x.x, x.y, x.z, x.w};
            for (unsigned e = 0u; e < 4u; e++) {
                w_part[4u * quad + e][at] = w_of[e];
                x_part[4u * quad + e][at] = x_of[e];
            }
        }
        block_sync();
        for (unsigned c = 0u; c < COLUMNS; c++) {
            for (unsigned t = 0u; t < 4u; t++) {
                for (unsigned r = 0u; r < 4u; r++) {
                    sum[t][r] = fmaf(w_part[c][own_row + 16u * r], x_part[c][own_token + 16u * t], sum[t][r]);
                }
            }
        }
        block_sync();
    }
    for (unsigned t = 0u; t < 4u; t++) {
        for (unsigned r = 0u; r < 4u; r++) {
            store(bias, y, p, first + own_token + 16u * t, first_row + own_row + 16u * r, sum[t][r]);
        }
    }
}
