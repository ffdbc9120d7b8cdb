// matmul: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o], weights decoded exactly, products and sums in f32.
//
// Tensor cores multiply 16-bit numbers exactly and add in f32. Codes of quantised weights, and f16 and bf16 weights, are
// such numbers (f32 weights are three bf16); scales multiply the sums of a run. An activation becomes
//   two f16, its run scaled by a power of two such that the largest lies in 2^14 .. 2^15: what is cut off is at most
//   2^-22 of the number or 2^-40 of the largest of its run; or
//   three bf16, exactly, where weights have the range of bf16.
// A type with minima has values a * code + b; z is the code whose value is nearest to 0, and the value
// a * (code - z) + (a * z + b), whose parts cannot cancel: together they are at most three times the value.
// Each run starts from zero and is added to its sum in f32, small parts first: tensor cores cut off where they add, and
// over a run that stays below the rounding of a sum of 32.
//
// matmul_few, up to 16 tokens: a block owns 16 * TILES rows, its warps every WARPS-th group of four runs, and their sums
// are added in order: a row's bits do not depend on the other rows. Weights go from memory to registers once, 128 bytes
// a warp and load; x is split in registers. Bound by memory: for w of 4 bits on an H200 (21 bytes a clock and SM) a
// quad of columns a lane has 13 issue slots and takes 12 to 16, on other GPUs it has 25 and more.
//
// matmul_many, from 17 tokens: matmul_split first makes the parts of x, in the order of the fragments. A block of WARPS
// warps owns 16 * TILES * WARPS rows by TOKENS tokens; a run of x and the next slice of a chunk of w (`lib/product.cuh`)
// come by asynchronous copies AHEAD steps early. Where blocks are few they divide the runs between them and
// matmul_merge adds their sums in order. Bound by tensor cores, from about 100 tokens on; by memory below.
//
// With ONCE activations and decoded weights are rounded to bf16 and multiplied once, and sums stay in the tensor cores'
// registers; bound by them, a quarter or so of whose time the decoding of weights takes beside.
#include "lib/product.cuh"

// A specialisation is for few tokens or for many, which spares the compiler the entry of the other.

// Parts of an activation.
constexpr unsigned X_PARTS = ONCE ? 1u : w_BF16 ? 3u : 2u;
// Products of parts smaller than the last part of a number are left out.
constexpr unsigned LEVELS = X_PARTS > w_PARTS ? X_PARTS : w_PARTS;

// Activations of a run as a lane holds them.
struct RunX {
    unsigned parts[X_PARTS][2][2]; // part -> half of the run -> pair of columns
    float scale;                   // of all parts
    float sums[2];                 // of the columns of each half, if weights have minima
};

DEVICE float quad_sum(float4 v) { return (v.x + v.y) + (v.z + v.w); }

DEVICE float largest(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }

// Called by whole warps: lanes 4 g .. 4 g + 3 hold the run of a token, quads c and 4 + c each.
DEVICE RunX split(float4 first, float4 second) {
    RunX x = {};
    x.scale = 1.0f;
    float4 v[2] = {first, second};
    for (unsigned half = 0u; half < 2u; half++) {
        if (w_MIN && !ONCE) {
            float sum = quad_sum(v[half]);
            sum += shuffle_xor(sum, 1u);
            x.sums[half] = sum + shuffle_xor(sum, 2u);
        }
        if constexpr (ONCE) {
            x.parts[0][half][0] = bf16_pair(v[half].x, v[half].y);
            x.parts[0][half][1] = bf16_pair(v[half].z, v[half].w);
        } else if constexpr (w_BF16) {
            unsigned parts[3][2];
            split_bf16(v[half], parts);
#pragma unroll
            for (unsigned part = 0u; part < 3u; part++) {
                x.parts[part][half][0] = parts[part][0];
                x.parts[part][half][1] = parts[part][1];
            }
        }
    }
    if constexpr (!w_BF16 && !ONCE) {
        float top = fmaxf(largest(first), largest(second));
        top = fmaxf(top, shuffle_xor(top, 1u));
        top = fmaxf(top, shuffle_xor(top, 2u));
        // The largest of subnormals stays below; all of f32's range has a scale and its inverse.
        unsigned exponent = bits_of(top) >> 23u;
        exponent = exponent < 15u ? 15u : exponent;
        x.scale = float_of((exponent - 14u) << 23u);
        float inverse = float_of((268u - exponent) << 23u);
        // An infinity has no rest.
        bool whole = exponent == 255u;
        for (unsigned half = 0u; half < 2u; half++) {
            float4 s = {v[half].x * inverse, v[half].y * inverse, v[half].z * inverse, v[half].w * inverse};
            unsigned low = f16_pair(s.x, s.y), high = f16_pair(s.z, s.w);
            x.parts[0][half][0] = low;
            x.parts[0][half][1] = high;
            x.parts[1][half][0] = whole ? 0u : f16_pair(s.x - low_f16(low), s.y - high_f16(low));
            x.parts[1][half][1] = whole ? 0u : f16_pair(s.z - low_f16(high), s.w - high_f16(high));
        }
    }
    return x;
}

// Weights of 16 rows and a run as a lane holds them.
struct RunW {
    unsigned parts[w_PARTS][2][4]; // part -> half of the run -> fragment
    Scale scale[2][2];             // half of the run -> row
};

// `tiles` lead to rows 0 and 8, `run` counts runs of 16 columns from there, `left` columns follow.
DEVICE RunW weights(const unsigned* const (&tiles)[2], const unsigned* w_table, unsigned run, unsigned left) {
    unsigned row = lane_id() / 4u, c = lane_id() % 4u;
    RunW w;
    for (unsigned r = 0u; r < 2u; r++) {
        unsigned zero = 0u;
        for (unsigned half = 0u; half < 2u; half++) {
            const unsigned* tile = tiles[r] + size_t((run + half) / w_RUNS) * w_TILE;
            unsigned in_tile = (run + half) % w_RUNS;
            Scale scale = {1.0f, 0.0f};
            if (w_SCALED && (half == 0u || w_SPLIT)) {
                scale = w_scale(tile, w_table, row, in_tile);
                if (w_MIN) {
                    // Any code will do that is near: without a scale there is no nearest, and no matter.
                    float nearest = fminf(fmaxf(rintf(-scale.b / scale.a), 0.0f), float(w_TOP));
                    zero = unsigned(nearest);
                    scale.b = fmaf(scale.a, nearest, scale.b);
                }
            } else if (half == 1u) {
                scale = w.scale[0][r];
            }
            w.scale[half][r] = scale;
            unsigned behind = 16u * half + 4u * c;
            unsigned pairs[w_PARTS][2];
            w_operands(tile, w_table, row, 4u * in_tile + c, zero, left > behind ? left - behind : 0u, pairs);
#pragma unroll
            for (unsigned part = 0u; part < w_PARTS; part++) {
                w.parts[part][half][r] = pairs[part][0];
                w.parts[part][half][r + 2u] = pairs[part][1];
            }
        }
    }
    return w;
}

// The same with factors in bf16, of all rows of a warp: values, not codes. `own` is the warp's part of a chunk. The four
// lanes of a row need the same scales, so each makes those of one row and fragment.
DEVICE void rounded_weights(unsigned (&to)[TILES][2][4], const unsigned* own, const unsigned* w_table, unsigned run) {
    unsigned row = lane_id() / 4u, c = lane_id() % 4u;
    Scale scales[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};
    if (w_SCALED) {
        const unsigned* group = own + (2u * (c / 2u % TILES) + c % 2u) * CHUNK_WORDS;
        for (unsigned half = 0u; half < (w_SPLIT ? 2u : 1u); half++) {
            scales[half] = w_scale(group + (run + half) / w_RUNS * w_TILE, w_table, row, (run + half) % w_RUNS);
        }
    }
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
#pragma unroll
        for (unsigned r = 0u; r < 2u; r++) {
            const unsigned* group = own + (2u * m + r) * CHUNK_WORDS;
#pragma unroll
            for (unsigned half = 0u; half < 2u; half++) {
                unsigned in_tile = (run + half) % w_RUNS;
                float4 v = w_quad(group + (run + half) / w_RUNS * w_TILE, w_table, row, 4u * in_tile + c);
                if (w_SCALED) {
                    unsigned lane = 4u * row + 2u * m + r;
                    float a = shuffle(scales[w_SPLIT ? half : 0u].a, lane);
                    float b = w_MIN ? shuffle(scales[w_SPLIT ? half : 0u].b, lane) : 0.0f;
                    v = {fmaf(v.x, a, b), fmaf(v.y, a, b), fmaf(v.z, a, b), fmaf(v.w, a, b)};
                }
                to[m][half][r] = bf16_pair(v.x, v.y);
                to[m][half][r + 2u] = bf16_pair(v.z, v.w);
            }
        }
    }
}

// Adds the products of a run for tokens 2 c and 2 c + 1, whose scales and sums of halves are given.
DEVICE void add_run(float (&sum)[4], const RunW& w, const unsigned (&x)[X_PARTS][2][2], const float (&scale)[2],
                    const float (&sums)[2][2]) {
    float part[4] = {};
    for (unsigned half = 0u; half < 2u; half++) {
        // Without scales of their own the halves are one sum, from the smallest parts to the largest.
        if (w_SPLIT || half == 0u) {
            for (unsigned e = 0u; e < 4u; e++) {
                part[e] = 0.0f;
            }
#pragma unroll
            for (unsigned level = LEVELS; level-- > 0u;) {
                for (unsigned i = 0u; i < w_PARTS && i <= level; i++) {
                    if (level - i < X_PARTS) {
                        for (unsigned k = half; k < (w_SPLIT ? half + 1u : 2u); k++) {
                            if (w_BF16) {
                                mma_bf16(part, w.parts[i][k], x[level - i][k]);
                            } else {
                                mma_f16(part, w.parts[i][k], x[level - i][k]);
                            }
                        }
                    }
                }
            }
            for (unsigned e = 0u; e < 4u; e++) {
                float product = w_BF16 ? part[e] : part[e] * scale[e % 2u];
                sum[e] = w_SCALED ? fmaf(product, w.scale[half][e / 2u].a, sum[e]) : sum[e] + product;
            }
        }
        if (w_MIN && (w_SPLIT || half == 0u)) {
            for (unsigned e = 0u; e < 4u; e++) {
                float columns = w_SPLIT ? sums[half][e % 2u] : sums[0][e % 2u] + sums[1][e % 2u];
                sum[e] = fmaf(columns, w.scale[half][e / 2u].b, sum[e]);
            }
        }
    }
}

KERNEL matmul_few(const float* __restrict__ x_data, const unsigned* __restrict__ w_data,
                  const unsigned* __restrict__ w_table, const float* __restrict__ bias, float* __restrict__ y,
                  const Params p) {
    if (!FEW) {
        return;
    }
    constexpr unsigned TOKEN_TILES = TOKENS / 8u;
    unsigned row_block = folded();
    if (row_block >= p.n_row_blocks) {
        return;
    }
    unsigned c = lane_id() % 4u;
    const unsigned* tiles[TILES][2];
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
        for (unsigned r = 0u; r < 2u; r++) {
            tiles[m][r] = group_start(w_data, p, 2u * (row_block * TILES + m) + r);
        }
    }
    size_t x_row[TOKEN_TILES];
    bool is_token[TOKEN_TILES];
#pragma unroll
    for (unsigned t = 0u; t < TOKEN_TILES; t++) {
        unsigned token = 8u * t + lane_id() / 4u;
        is_token[t] = token < p.n_tokens;
        x_row[t] = row_offset(is_token[t] ? token : 0u, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    }
    float sum[TILES][TOKEN_TILES][4] = {};
    unsigned n = n_runs(p);
    for (unsigned group = warp_id(); 4u * group < n; group += WARPS) {
        unsigned end = 4u * group + 4u < n ? 4u * group + 4u : n;
#pragma unroll 2
        for (unsigned run = 4u * group; run < end; run++) {
            RunW w[TILES];
#pragma unroll
            for (unsigned m = 0u; m < TILES; m++) {
                w[m] = weights(tiles[m], w_table, 2u * run, p.n - 32u * run);
            }
#pragma unroll
            for (unsigned t = 0u; t < TOKEN_TILES; t++) {
                float4 v[2] = {};
                for (unsigned half = 0u; half < 2u; half++) {
                    unsigned i = 32u * run + 16u * half + 4u * c;
                    if (is_token[t] && i < p.n) {
                        v[half] = x_quad(x_data, x_row[t], i, p.n);
                    }
                }
                RunX x = split(v[0], v[1]);
                // Token g lies in lanes 4 g and on; this lane adds to tokens 2 c and 2 c + 1.
                float scale[2] = {}, sums[2][2] = {};
                for (unsigned e = 0u; e < 2u; e++) {
                    unsigned from = 4u * (2u * c + e);
                    if (!w_BF16) {
                        scale[e] = shuffle(x.scale, from);
                    }
                    if (w_MIN) {
                        sums[0][e] = shuffle(x.sums[0], from);
                        sums[1][e] = shuffle(x.sums[1], from);
                    }
                }
#pragma unroll
                for (unsigned m = 0u; m < TILES; m++) {
                    add_run(sum[m][t], w[m], x.parts, scale, sums);
                }
            }
        }
    }
    store_warps(sum, bias, y, p, 0u, 16u * TILES * row_block);
}

// Four lanes make the parts of a run of a token, in the order in which `ldmatrix` hands them out:
// parts[part][token][run] is 16 words, [half][pair of columns][c]; figures[scale, sum, sum][run][token]. With ONCE
// parts[run][token], whose quarters are exchanged as in shared memory.
KERNEL matmul_split(const float* __restrict__ x_data, unsigned* __restrict__ parts, float* __restrict__ figures,
                    const Params p) {
    // Whole steps.
    unsigned runs = (n_runs(p) + STEP - 1u) / STEP * STEP, c = lane_id() % 4u;
    unsigned item = (folded() * THREADS + thread_id()) / 4u;
    bool is_item = item < p.n_tokens * runs;
    unsigned token = is_item ? item / runs : 0u, run = is_item ? item % runs : 0u;
    size_t row = row_offset(token, p.x_n1, p.x_s0, p.x_s1, p.x_off);
    float4 v[2] = {};
    for (unsigned half = 0u; half < 2u; half++) {
        unsigned i = 32u * run + 16u * half + 4u * c;
        if (is_item && i < p.n) {
            v[half] = x_quad(x_data, row, i, p.n);
        }
    }
    RunX x = split(v[0], v[1]);
    if (!is_item) {
        return;
    }
    if (ONCE) {
        // As stages hold them, so that a block copies one piece a run.
        unsigned* to = parts + (size_t(run) * p.token_stride + token) * 16u + c;
        for (unsigned quarter = 0u; quarter < 4u; quarter++) {
            to[4u * (quarter ^ (token / 2u % 4u))] = x.parts[0][quarter / 2u][quarter % 2u];
        }
        return;
    }
#pragma unroll
    for (unsigned part = 0u; part < X_PARTS; part++) {
        unsigned* to = parts + ((size_t(part) * p.n_tokens + token) * runs + run) * 16u + c;
        for (unsigned half = 0u; half < 2u; half++) {
            to[8u * half] = x.parts[part][half][0];
            to[8u * half + 4u] = x.parts[part][half][1];
        }
    }
    if (c == 0u) {
        float figure[3] = {x.scale, x.sums[0], x.sums[1]};
        for (unsigned f = 0u; f < 3u; f++) {
            figures[(size_t(f) * runs + run) * p.token_stride + token] = figure[f];
        }
    }
}

// A run of x for the tokens of a block.
static_assert(STEP == 1u || ONCE, "a stage is a run, with ONCE some");
constexpr unsigned GROUPS = 2u * TILES * WARPS;
constexpr unsigned FIGURES = ONCE ? 0u : w_MIN ? 3u : 1u;
constexpr unsigned X_BYTES = STEP * X_PARTS * TOKENS * 64u;
// x, then its figures.
struct Stage {
    unsigned char bytes[X_BYTES + 4u * FIGURES * TOKENS];
};
DEVICE const float* figures_of(const Stage& stage, unsigned f) {
    return reinterpret_cast<const float*>(stage.bytes + X_BYTES) + f * TOKENS;
}

// Starts copying a run of x.
DEVICE void copy_x(Stage& to, const unsigned* parts, const float* figures, const Params& p, unsigned first, unsigned run) {
    if (ONCE) {
        // Rows behind the last token hold anything, and meet no other token. Runs behind the end are there, as zeros.
        const unsigned* from = parts + (size_t(run) * p.token_stride + first) * 16u;
        for (unsigned i = 0u; i < STEP; i++) {
            for (unsigned job = thread_id(); job < TOKENS * 4u; job += THREADS) {
                copy_async<16>(to.bytes + i * TOKENS * 64u + 16u * job, from + i * p.token_stride * 16u + 4u * job);
            }
        }
        return;
    }
    unsigned runs = n_runs(p);
    for (unsigned job = thread_id(); job < X_PARTS * TOKENS * 4u; job += THREADS) {
        unsigned row = job / 4u, quarter = job % 4u;
        unsigned part = row / TOKENS, token = first + row % TOKENS;
        bool keep = token < p.n_tokens;
        size_t from = ((size_t(part) * p.n_tokens + (keep ? token : 0u)) * runs + run) * 16u + 4u * quarter;
        copy_async<16>(to.bytes + swizzled(row, quarter), parts + from, keep);
    }
    for (unsigned job = thread_id(); job < FIGURES * TOKENS / 4u; job += THREADS) {
        unsigned f = job / (TOKENS / 4u), at = job % (TOKENS / 4u) * 4u;
        // The stride is whole blocks of tokens.
        copy_async<16>(to.bytes + X_BYTES + 4u * (f * TOKENS + at), figures + (size_t(f) * runs + run) * p.token_stride + first + at);
    }
}

KERNEL matmul_many(const unsigned* __restrict__ parts, const float* __restrict__ figures,
                   const unsigned* __restrict__ w_data, const unsigned* __restrict__ w_table,
                   const float* __restrict__ bias, float* __restrict__ y, const Params p) {
    if (FEW) {
        return;
    }
    constexpr unsigned TOKEN_TILES = TOKENS / 8u;
    // Blocks of the same rows are neighbours, so that the weights stay in the cache.
    unsigned index = folded();
    unsigned n_token_blocks = (p.n_tokens + TOKENS - 1u) / TOKENS;
    unsigned token_block = index % n_token_blocks;
    unsigned row_block = index / n_token_blocks % p.n_row_blocks;
    unsigned split_index = index / n_token_blocks / p.n_row_blocks;
    if (split_index >= p.n_splits) {
        return;
    }
    unsigned first = token_block * TOKENS, group = row_block * GROUPS;
    unsigned lane = lane_id(), c = lane % 4u;
    unsigned own_group = 2u * TILES * warp_id();
    // Whole chunks of runs.
    unsigned start = split_index * p.split_runs;
    unsigned end = start + p.split_runs < n_runs(p) ? start + p.split_runs : n_runs(p);
    float sum[TILES][TOKEN_TILES][4] = {};
    auto copy = [&](Stage& to, unsigned run) { copy_x(to, parts, figures, p, first, run); };
    auto multiply = [&](const Stage& stage, const unsigned* chunk, unsigned run) {
        const unsigned* own = chunk + own_group * CHUNK_WORDS;
        if (ONCE) {
#pragma unroll
            for (unsigned i = 0u; i < STEP; i++) {
                unsigned w[TILES][2][4];
                rounded_weights(w, own, w_table, 2u * (run + i));
                const unsigned char* step = stage.bytes + i * TOKENS * 64u;
#pragma unroll
                for (unsigned t = 0u; t < TOKEN_TILES; t++) {
                    unsigned x[4];
                    ldmatrix<4>(x, step + swizzled(8u * t + lane % 8u, lane / 8u));
                    unsigned halves[2][2] = {{x[0], x[1]}, {x[2], x[3]}};
#pragma unroll
                    for (unsigned m = 0u; m < TILES; m++) {
                        mma_bf16(sum[m][t], w[m][0], halves[0]);
                        mma_bf16(sum[m][t], w[m][1], halves[1]);
                    }
                }
                // The weights of the next run are not read before: both would not stay in registers.
                warp_sync();
            }
            return;
        }
        RunW w[TILES];
#pragma unroll
        for (unsigned m = 0u; m < TILES; m++) {
            const unsigned* tiles[2] = {own + 2u * m * CHUNK_WORDS, own + (2u * m + 1u) * CHUNK_WORDS};
            w[m] = weights(tiles, w_table, 2u * run, 32u);
        }
#pragma unroll
        for (unsigned t = 0u; t < TOKEN_TILES; t++) {
            unsigned x[X_PARTS][2][2];
#pragma unroll
            for (unsigned part = 0u; part < X_PARTS; part++) {
                unsigned quarters[4];
                ldmatrix<4>(quarters, stage.bytes + swizzled(part * TOKENS + 8u * t + lane % 8u, lane / 8u));
                for (unsigned q = 0u; q < 4u; q++) {
                    x[part][q / 2u][q % 2u] = quarters[q];
                }
            }
            unsigned token = 8u * t + 2u * c;
            float scale[2] = {}, sums[2][2] = {};
            for (unsigned e = 0u; e < 2u; e++) {
                scale[e] = figures_of(stage, 0u)[token + e];
                if (w_MIN) {
                    sums[0][e] = figures_of(stage, FIGURES - 2u)[token + e];
                    sums[1][e] = figures_of(stage, FIGURES - 1u)[token + e];
                }
            }
#pragma unroll
            for (unsigned m = 0u; m < TILES; m++) {
                add_run(sum[m][t], w[m], x, scale, sums);
            }
        }
    };
    for_each_step<GROUPS, Stage>(w_data, p, group, start, end, copy, multiply);
#pragma unroll
    for (unsigned m = 0u; m < TILES; m++) {
#pragma unroll
        for (unsigned t = 0u; t < TOKEN_TILES; t++) {
            for (unsigned e = 0u; e < 4u; e++) {
                Place at = mma_c(lane, e);
                store_part(bias, y, p, split_index, first + 8u * t + at.column,
                           8u * (group + own_group) + 16u * m + at.row, sum[m][t][e]);
            }
        }
    }
}

// The sums of blocks that divided the runs, in their order.
KERNEL matmul_merge(const float* __restrict__ sums, const float* __restrict__ bias, float* __restrict__ y,
                    const Params p) {
    merge_parts(sums, bias, y, p);
}
