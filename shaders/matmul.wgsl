// matmul: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o], weights decoded exactly, products and sums in f32.
// A thread owns four rows of w (half a tile) and every KSPLIT-th step of STEP quads of columns, for TOKENS tokens;
// QUADS * KSPLIT threads are a block. The order of a sum depends on KSPLIT and STEP alone, so a row's bits do not
// depend on the other rows. `matmul_tile` is for many tokens on a GPU (`lib/product.wgsl`).
//
// The piece under prefix `v` brings a quad of activations to all threads: by a load, or where eight threads are a warp
// and a block, by a shuffle from the thread that loaded it (`spread_shuffle`).
//
// lavapipe, Mesa 25.0.7, two cores, 2048 x 2048, GFLOP/s of CPU time for TOKENS 1, 4 and 16: q4_1 9.7, 26, 37; q8_0 10, 27,
// 37; q4_k 8.4, 21, 34; q6_k 7.1, 20; f16 8.0, 21, 35; f32 6.2, 19. Loads in place of shuffles: q8_0 8.4, 15; one row
// a thread: 3.5 at best.
#import grid
#import rows
#import product

@group(0) @binding(0) var<storage, read_write> x_data: array<x_Elem>;
@group(0) @binding(1) var<storage, read> w_data: array<w_Words>;
@group(0) @binding(2) var<storage, read> w_table: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

// Where the activations of token `t` start.
fn x_start(t: u32) -> u32 {
    return row_offset(t, p.x_n1, p.x_s0, p.x_s1, p.x_off);
}

// Adds the sum of a step: of codes, or of values where there is a minimum.
fn add_part(part: vec4<f32>, scale: Scale, sum: vec4<f32>) -> vec4<f32> {
    if (w_SCALED && !w_MIN) {
        return fma(scale.a, part, sum);
    }
    return sum + part;
}

@compute @workgroup_size(THREADS)
fn matmul(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    // Blocks of the same rows are neighbours, so that the weights stay in the cache.
    let index = folded(block, grid);
    let n_token_blocks = (p.n_tokens + TOKENS - 1u) / TOKENS;
    let row_block = index / n_token_blocks;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    let first = (index % n_token_blocks) * TOKENS;
    let row = 4u * (row_block * QUADS + thread % QUADS);
    // Rows behind the end repeat the last and are not stored.
    let quad_row = min(row, p.n_rows - 1u) >> 2u;
    let base = (quad_row >> 1u) * p.w_group;
    let h = quad_row & 1u;
    var x_row: array<u32, TOKENS>;
    var sum: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        x_row[t] = x_start(min(first + t, p.n_tokens - 1u));
    }
    for (var step = thread / QUADS; 4u * STEP * step < p.n; step += KSPLIT) {
        let column = 4u * STEP * step;
        let tile = base + (STEP * step / (4u * w_RUNS)) * w_TILE;
        // Known to be zero where a step is a tile, so that two quads of one word load it once.
        var in_tile = 0u;
        if (4u * w_RUNS != STEP) {
            in_tile = (STEP * step) % (4u * w_RUNS);
        }
        var scale = w_scale(tile, h, in_tile >> 2u);
        var part: array<vec4<f32>, TOKENS>;
        var own: array<vec4<f32>, TOKENS>;
        for (var t = 0u; t < TOKENS; t++) {
            own[t] = v_own(x_row[t], column, thread);
        }
        if (STEP == 8u && TOKENS <= 4u) {
            // Quads `q` and `q + 4` together: the nibbles of one word in the types of 32 columns.
            var second: array<vec4<f32>, TOKENS>;
            var second_scale = scale;
            if (w_SPLIT) {
                second_scale = w_scale(tile, h, (in_tile >> 2u) + 1u);
            }
            for (var q = 0u; q < 4u; q++) {
                let i = column + 4u * q;
                if (!w_SCALED && i >= p.n) {
                    break;
                }
                var m = x_mask(w_quad(tile, h, in_tile + q), p.n - i);
                if (w_MIN) {
                    m = product_decode(m, scale);
                }
                for (var t = 0u; t < TOKENS; t++) {
                    part[t] = product_add(m, v_quad(own[t], x_row[t], i, q), part[t]);
                }
                if (!w_SCALED && i + 16u >= p.n) {
                    continue;
                }
                m = x_mask(w_quad(tile, h, in_tile + q + 4u), p.n - i - 16u);
                if (w_MIN) {
                    m = product_decode(m, second_scale);
                }
                for (var t = 0u; t < TOKENS; t++) {
                    second[t] = product_add(m, v_quad(own[t], x_row[t], i + 16u, q + 4u), second[t]);
                }
            }
            for (var t = 0u; t < TOKENS; t++) {
                sum[t] = add_part(second[t], second_scale, add_part(part[t], scale, sum[t]));
            }
            continue;
        }
        for (var q = 0u; q < STEP; q++) {
            let i = column + 4u * q;
            // Only rows of plain types end inside a step.
            if (!w_SCALED && i >= p.n) {
                break;
            }
            if (w_SPLIT && q == 4u) {
                for (var t = 0u; t < TOKENS; t++) {
                    sum[t] = add_part(part[t], scale, sum[t]);
                    part[t] = vec4<f32>();
                }
                scale = w_scale(tile, h, (in_tile >> 2u) + 1u);
            }
            var m = x_mask(w_quad(tile, h, in_tile + q), p.n - i);
            if (w_MIN) {
                m = product_decode(m, scale);
            }
            for (var t = 0u; t < TOKENS; t++) {
                part[t] = product_add(m, v_quad(own[t], x_row[t], i, q), part[t]);
            }
        }
        for (var t = 0u; t < TOKENS; t++) {
            sum[t] = add_part(part[t], scale, sum[t]);
        }
    }
    for (var t = 0u; t < TOKENS; t++) {
        let total = product_sum(sum[t], thread);
        if (thread < QUADS) {
            product_store(total, first + t, row);
        }
    }
}

@compute @workgroup_size(THREADS)
fn matmul_tile(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    product_tile(folded(block, grid), thread);
}
