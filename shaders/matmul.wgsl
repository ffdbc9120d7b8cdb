// matmul: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o], weights decoded exactly, products and sums in f32.
// A thread owns four rows of w (half a tile) and every KSPLIT-th run of 16 columns, for TOKENS tokens; QUADS * KSPLIT
// threads are a block. The order of a sum depends on KSPLIT alone, so a row's bits do not depend on the other rows.
// `matmul_tile` is for many tokens on a GPU (`lib/product.wgsl`).
//
// lavapipe, Mesa 25.0.7, two cores, 2048 x 2048, GFLOP/s for 1 and 4 tokens: q4_1 8.4, 15; q8_0 8.4, 15; q4_k 6.3, 13;
// q6_k 5.8, 12; q3_k 7.9, 14; iq4_xs 6.3, 12; iq2_xs 5.0, 11; iq3_s 3.9, 9.7; f16 6.3, 12; f32 5.0, 10. Vectors over
// rows make one load of four rows, and x is one address for all threads of a block; per-row threads reached 3.5.
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
    for (var run = thread / QUADS; run < p.n_runs; run += KSPLIT) {
        let tile = base + (run / w_RUNS) * w_TILE;
        let in_tile = run % w_RUNS;
        let scale = w_scale(tile, h, in_tile);
        var part: array<vec4<f32>, TOKENS>;
        for (var q = 0u; q < 4u; q++) {
            let i = 16u * run + 4u * q;
            if (i >= p.n) {
                break;
            }
            var m = x_mask(w_quad(tile, h, 4u * in_tile + q), p.n - i);
            if (w_MIN) {
                m = product_decode(m, scale);
            }
            for (var t = 0u; t < TOKENS; t++) {
                part[t] = product_add(m, x_quad(x_row[t], i, p.n), part[t]);
            }
        }
        for (var t = 0u; t < TOKENS; t++) {
            if (w_SCALED && !w_MIN) {
                sum[t] = fma(scale.a, part[t], sum[t]);
            } else {
                sum[t] += part[t];
            }
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
