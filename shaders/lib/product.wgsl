// What the matrix products share: the sum over threads, the store, and the tiled form.
// The including file names `w_…` (`lib/tile.wgsl`), `x_quad`, `x_mask`, `bias`, `y` and `p`.
#import product_parts

var<workgroup> product_shared: array<vec4<f32>, STAGED>;

// The sum of the KSPLIT threads that own the same rows, in an order that depends on KSPLIT alone; thread
// `k * QUADS + i` holds part `k` of rows `4 * i ..`. Every thread of the block must call it; the first QUADS get it.
fn product_sum(value: vec4<f32>, thread: u32) -> vec4<f32> {
    if (KSPLIT == 1u) {
        return value;
    }
    workgroupBarrier();
    product_shared[thread] = value;
    for (var n = KSPLIT / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n * QUADS) {
            product_shared[thread] += product_shared[thread + n * QUADS];
        }
    }
    workgroupBarrier();
    return product_shared[thread % QUADS];
}

// Four rows of the output of token `t`: `value * scale + bias`.
fn product_store(value: vec4<f32>, t: u32, row: u32) {
    if (t >= p.n_tokens) {
        return;
    }
    var v = value * p.scale;
    let at = t * p.d_out + p.row0 + row;
    for (var r = 0u; r < 4u; r++) {
        if (row + r < p.n_rows) {
            var out = v.x;
            if (p.has_bias == 1u) {
                out += bias[p.row0 + row + r];
            }
            y[at + r] = out;
        }
        v = v.yzwx;
    }
}

// Four decoded columns `i ..` of four rows; columns behind the end are zero.
fn product_weights(base: u32, h: u32, i: u32) -> mat4x4<f32> {
    if (i >= p.n) {
        return mat4x4<f32>();
    }
    let tile = base + (i / (16u * w_RUNS)) * w_TILE;
    let quad = (i >> 2u) % (4u * w_RUNS);
    let m = x_mask(w_quad(tile, h, quad), p.n - i);
    if (!w_SCALED) {
        return m;
    }
    let scale = w_scale(tile, h, quad >> 2u);
    return product_decode(m, scale);
}

// 64 rows by 64 tokens, for many tokens on a GPU: 256 threads of 4 rows by 4 tokens each; 32 columns at a time are
// decoded once into shared memory, as vectors over rows and vectors over tokens.
fn product_tile(index: u32, thread: u32) {
    let n_token_blocks = (p.n_tokens + 63u) / 64u;
    let row_block = index / n_token_blocks;
    if (row_block >= p.n_row_blocks) {
        return;
    }
    let first = 64u * (index % n_token_blocks);
    let lane = thread & 15u;
    let row = 64u * row_block + 4u * lane;
    let t = first + 4u * (thread >> 4u);

    // The first half of the threads fetches weights, the other half activations: 16 vectors, 8 quads of columns.
    let fetches_weights = thread < 128u;
    let quad = (thread >> 4u) & 7u;
    let quad_row = min(row, p.n_rows - 1u) >> 2u;
    let base = (quad_row >> 1u) * p.w_group;
    let h = quad_row & 1u;
    let last = p.n_tokens - 1u;
    let r0 = x_start(min(first + 4u * lane, last));
    let r1 = x_start(min(first + 4u * lane + 1u, last));
    let r2 = x_start(min(first + 4u * lane + 2u, last));
    let r3 = x_start(min(first + 4u * lane + 3u, last));

    var sum = mat4x4<f32>();
    for (var column = 0u; column < p.n; column += 32u) {
        let i = column + 4u * quad;
        let at = 64u * quad + lane;
        if (fetches_weights) {
            let m = product_weights(base, h, i);
            product_shared[at] = m[0];
            product_shared[at + 16u] = m[1];
            product_shared[at + 32u] = m[2];
            product_shared[at + 48u] = m[3];
        } else {
            var m = mat4x4<f32>();
            if (i < p.n) {
                m = transpose(mat4x4<f32>(
                    x_quad(r0, i, p.n),
                    x_quad(r1, i, p.n),
                    x_quad(r2, i, p.n),
                    x_quad(r3, i, p.n),
                ));
            }
            product_shared[512u + at] = m[0];
            product_shared[528u + at] = m[1];
            product_shared[544u + at] = m[2];
            product_shared[560u + at] = m[3];
        }
        workgroupBarrier();
        for (var c = 0u; c < 32u; c++) {
            let w = product_shared[16u * c + lane];
            let v = product_shared[512u + 16u * c + (thread >> 4u)];
            sum[0] = fma(w, v.xxxx, sum[0]);
            sum[1] = fma(w, v.yyyy, sum[1]);
            sum[2] = fma(w, v.zzzz, sum[2]);
            sum[3] = fma(w, v.wwww, sum[3]);
        }
        workgroupBarrier();
    }
    product_store(sum[0], t, row);
    product_store(sum[1], t + 1u, row);
    product_store(sum[2], t + 2u, row);
    product_store(sum[3], t + 3u, row);
}
