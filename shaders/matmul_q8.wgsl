// matmul_q8: y[t, o] = scale * sum_i w[o, i] * x[t, i] + bias[o] with x in int8 blocks of 32 (`quantize_q8`).
// For a block of 32 columns: y += d * sum(a * sum(code * q)) + b * (d * sum q), `a` and `b` the scale and minimum of
// the weights; sums of codes are exact integers. Threads as in `matmul`, 32 columns at a time.
// DOT4 chooses packed integer products; without it the same integers are multiplied as floats, with the same bits.
// `matmul_q8_tile` is for many tokens on a GPU (`lib/product.wgsl`).
//
// lavapipe, Mesa 25.0.7, two cores, 2048 x 2048, GFLOP/s for 1 and 4 tokens (16 tokens: 27): q4_1 11, 24; q8_0 9.5, 24;
// q4_k 9.5, 22; q6_k 6.5, 18. With DOT4, which that driver unpacks anew for every product: the same for 1, 11-14 for 4.
#import grid
#import rows
#import product

@group(0) @binding(0) var<storage, read_write> x_q: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> x_s: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> w_data: array<w_Words>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

// Where the blocks of token `t` start, counted in blocks.
fn x_start(t: u32) -> u32 {
    return t * (p.n >> 5u);
}

// Elements `i .. i + 4` of the row whose blocks start at `row`.
fn x_quad(row: u32, i: u32, n: u32) -> vec4<f32> {
    let at = row + (i >> 5u);
    let words = x_q[p.q_off + 2u * at + ((i >> 4u) & 1u)];
    let lane = (i >> 2u) & 3u;
    let word = select(select(words.x, words.y, lane == 1u), select(words.z, words.w, lane == 3u), lane > 1u);
    return vec4<f32>(unpack4xI8(word)) * x_s[p.s_off + at].x;
}

fn x_mask(m: mat4x4<f32>, left: u32) -> mat4x4<f32> {
    return m;
}

fn dot_rows(w: vec4<u32>, x: u32) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(w.x, x),
        dot4I8Packed(w.y, x),
        dot4I8Packed(w.z, x),
        dot4I8Packed(w.w, x),
    );
}

@compute @workgroup_size(THREADS)
fn matmul_q8(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
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
    for (var run = thread / QUADS; 32u * run < p.n; run += KSPLIT) {
        let tile = base + (2u * run / w_RUNS) * w_TILE;
        let in_tile = (2u * run) % w_RUNS;
        var scale = w_scale(tile, h, in_tile);
        var part: array<vec4<f32>, TOKENS>;
        for (var half_run = 0u; half_run < 2u; half_run++) {
            if (w_SPLIT && half_run == 1u) {
                scale = w_scale(tile, h, in_tile + 1u);
            }
            let quad = 4u * (in_tile + half_run);
            if (DOT4) {
                let w0 = w_packed(tile, h, quad);
                let w1 = w_packed(tile, h, quad + 1u);
                let w2 = w_packed(tile, h, quad + 2u);
                let w3 = w_packed(tile, h, quad + 3u);
                for (var t = 0u; t < TOKENS; t++) {
                    let x = x_q[p.q_off + 2u * (x_row[t] + run) + half_run];
                    let dots = dot_rows(w0, x.x) + dot_rows(w1, x.y) + dot_rows(w2, x.z) + dot_rows(w3, x.w);
                    part[t] = fma(scale.a, vec4<f32>(dots), part[t]);
                }
            } else {
                let m0 = w_quad(tile, h, quad);
                let m1 = w_quad(tile, h, quad + 1u);
                let m2 = w_quad(tile, h, quad + 2u);
                let m3 = w_quad(tile, h, quad + 3u);
                for (var t = 0u; t < TOKENS; t++) {
                    let x = x_q[p.q_off + 2u * (x_row[t] + run) + half_run];
                    var dots = product_add(m0, vec4<f32>(unpack4xI8(x.x)), vec4<f32>());
                    dots = product_add(m1, vec4<f32>(unpack4xI8(x.y)), dots);
                    dots = product_add(m2, vec4<f32>(unpack4xI8(x.z)), dots);
                    dots = product_add(m3, vec4<f32>(unpack4xI8(x.w)), dots);
                    part[t] = fma(scale.a, dots, part[t]);
                }
            }
        }
        for (var t = 0u; t < TOKENS; t++) {
            let s = x_s[p.s_off + x_row[t] + run];
            sum[t] = fma(part[t], s.xxxx, sum[t]);
            if (w_MIN) {
                sum[t] = fma(scale.b, s.yyyy, sum[t]);
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
fn matmul_q8_tile(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    product_tile(folded(block, grid), thread);
}
