// index_pool: the pooled key of each block of tokens that the step completes.
// LANES threads own a token, THREADS / LANES tokens a block; threads of tokens that complete nothing only take part in
// the barriers. The mean of the stored keys goes to shared memory, is normalised there, and rotated while it is stored.
#import grid
#import reduce
#import f16_bits

@group(0) @binding(0) var<storage, read_write> raw_data: array<u32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> rope_table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> page_table: array<i32>;
@group(0) @binding(4) var<storage, read_write> seq_rows: array<i32>;
@group(0) @binding(5) var<storage, read_write> positions: array<i32>;
@group(0) @binding(6) var<storage, read_write> pooled: array<u32>;
@group(0) @binding(7) var<uniform> p: Params;

const FINE = 256u;
const PAGE = 64u;
const NONE = 0xffffffffu;
const TOKENS = THREADS / LANES;

var<workgroup> key: array<array<f32, DIM_LEN>, TOKENS>;

// The page whose block a token completes, or NONE.
fn completed_page(token: u32) -> u32 {
    if (token >= p.n_tokens) {
        return NONE;
    }
    let position = positions[p.pos_off + token];
    let seq = seq_rows[p.seq_off + token];
    if (position < 0 || seq < 0 || u32(seq) >= p.n_seq_rows) {
        return NONE;
    }
    let ordinal = u32(position) / PAGE;
    if ((u32(position) + 1u) % p.ratio != 0u || ordinal >= p.max_pages) {
        return NONE;
    }
    let page = page_table[p.table_off + u32(seq) * p.max_pages + ordinal];
    return select(NONE, u32(page), page >= 0 && u32(page) < p.n_pages);
}

// (cos, sin) of a pair at a position.
fn angle(position: u32, pair: u32) -> vec2<f32> {
    let coarse_row = position / FINE;
    if (coarse_row >= p.n_coarse) {
        return vec2<f32>(0.0);
    }
    let fine = rope_table[(position % FINE) * p.pairs + pair];
    let coarse = rope_table[(FINE + coarse_row) * p.pairs + pair];
    return vec2<f32>(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// Channel i of a normalised key, rotated.
fn rotated(slot: u32, i: u32, position: u32) -> f32 {
    if (i >= 2u * p.pairs) {
        return key[slot][i];
    }
    // Pairs are neighbours, or half of the rotated channels apart.
    var pair = i % p.pairs;
    var is_second = i >= p.pairs;
    if (p.second == 1u && p.first == 2u) {
        pair = i / 2u;
        is_second = i % 2u == 1u;
    }
    let x0 = key[slot][pair * p.first];
    let x1 = key[slot][pair * p.first + p.second];
    let r = angle(position, pair);
    return select(x0 * r.x - x1 * r.y, x0 * r.y + x1 * r.x, is_second);
}

@compute @workgroup_size(THREADS)
fn index_pool(
    @builtin(workgroup_id) block: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let slot = thread / LANES;
    let lane = thread % LANES;
    let token = folded(block, grid) * TOKENS + slot;
    let page = completed_page(token);
    let completes = page != NONE;
    let dim = select(0u, p.dim, completes);
    var first = 0u;
    if (completes) {
        first = u32(positions[p.pos_off + token]) + 1u - p.ratio;
    }
    var squares = 0.0;
    for (var quad = lane; quad < dim / 4u; quad += LANES) {
        var sum = vec4<f32>(0.0);
        for (var i = 0u; i < p.ratio; i++) {
            sum += raw_quad((page * PAGE + first % PAGE + i) * p.raw_words, quad);
        }
        sum /= f32(p.ratio);
        squares += dot(sum, sum);
        for (var i = 0u; i < 4u; i++) {
            key[slot][4u * quad + i] = sum[i];
        }
    }
    let mean = group_sum(squares, thread, LANES) / f32(p.dim);
    // A key of zeros with eps = 0 stays zero.
    let scale = select(0.0, inverseSqrt(mean + p.eps), mean + p.eps > 0.0);
    for (var i = lane; i < dim; i += LANES) {
        key[slot][i] *= scale * w[i];
    }
    workgroupBarrier();
    let page_blocks = PAGE / p.ratio;
    let row = (page * page_blocks + (first / p.ratio) % page_blocks) * p.pooled_words;
    let n_words = select(0u, p.pooled_words, completes);
    for (var word = lane; word < n_words; word += LANES) {
        if (BITS == 32u) {
            pooled[row + word] = finite_bits(bitcast<u32>(rotated(slot, word, first)));
        } else {
            let low = rotated(slot, 2u * word, first);
            let high = rotated(slot, 2u * word + 1u, first);
            if (BF16) {
                pooled[row + word] = bf16_bits(low) | (bf16_bits(high) << 16u);
            } else {
                pooled[row + word] = f16_bits(low) | (f16_bits(high) << 16u);
            }
        }
    }
}
