// Encodes rows of f32 into the cells of a paged cache.
// The importer has `slots`, `element(row, i)`, element i of a row or 0 behind its end, and `store(at, word)`.
// write_words: plain types, a thread makes one word. write_blocks: block types, a thread owns 4 elements, the 8 threads
// of a cache block agree on its scale through shared memory.
// BITS of a code; BF16: 16 bits mean bf16; RANGED: a block has a scale and a minimum.
#import f16_bits

const NONE = 0xffffffffu;
const PAGE = 64u;
const F16_MAX = 65504.0;
const BLOCKS = THREADS / 8u;

var<workgroup> low: array<f32, THREADS>;
var<workgroup> high: array<f32, THREADS>;
var<workgroup> codes: array<u32, THREADS>;
var<workgroup> scales: array<u32, BLOCKS>;

// The rows of a step: a token's heads follow each other.
struct Rows {
    n_heads: u32,
    head_dim: u32,
    // Threads of a row, and of all rows.
    items: u32,
    n_items: u32,
    n_cells: u32,
    // Words of a cell, and those before its codes.
    row_words: u32,
    narrow: u32,
    slots_off: u32,
}

// First word of the cell that row (token, head) goes to.
fn cell_word(rows: Rows, row: u32) -> u32 {
    let slot = slots[rows.slots_off + row / rows.n_heads];
    if (slot < 0 || u32(slot) >= rows.n_cells) {
        return NONE;
    }
    let cell = u32(slot);
    return (((cell / PAGE) * rows.n_heads + row % rows.n_heads) * PAGE + cell % PAGE) * rows.row_words;
}

fn value(row: u32, i: u32) -> f32 {
    return bitcast<f32>(finite_bits(bitcast<u32>(element(row, i))));
}

fn half_bits(value: f32) -> u32 {
    if (BF16) {
        return bf16_bits(value);
    }
    return f16_bits(value);
}

// A scale as stored: zero is +0.
fn scale_bits(value: f32) -> u32 {
    let bits = f16_bits(value);
    return select(bits, 0u, bits == 0x8000u);
}

// Writes what thread `index` of all rows' owns.
fn write_words(rows: Rows, index: u32) {
    if (index >= rows.n_items) {
        return;
    }
    let row = index / rows.items;
    let word = index % rows.items;
    let cell = cell_word(rows, row);
    if (cell == NONE) {
        return;
    }
    if (BITS == 32u) {
        store(cell + word, bitcast<u32>(value(row, word)));
    } else {
        store(cell + word, half_bits(value(row, 2u * word)) | (half_bits(value(row, 2u * word + 1u)) << 16u));
    }
}

// The element of largest magnitude, the first of equals.
fn larger(a: f32, b: f32) -> f32 {
    return select(a, b, abs(b) > abs(a));
}

// To the nearest integer, halves away from zero.
fn round_away(v: vec4<f32>) -> vec4<i32> {
    let magnitude = abs(v);
    let whole = trunc(magnitude);
    return vec4<i32>(sign(v) * select(whole, whole + 1.0, magnitude - whole >= vec4<f32>(0.5)));
}

// The same of block types, by all threads of a block together.
fn write_blocks(rows: Rows, index: u32, thread: u32) {
    let lane = thread % 8u;
    let first_lane = thread - lane;
    let row = index / rows.items;
    let quad = index % rows.items;
    let in_row = quad / 8u;
    let n_blocks = (rows.head_dim + 31u) / 32u;
    var cell = NONE;
    if (index < rows.n_items) {
        cell = cell_word(rows, row);
    }
    var v = vec4<f32>(0.0);
    if (cell != NONE) {
        let i = 4u * quad;
        v = vec4<f32>(value(row, i), value(row, i + 1u), value(row, i + 2u), value(row, i + 3u));
    }

    // The range of the block, or its element of largest magnitude.
    if (RANGED) {
        low[thread] = min(min(v.x, v.y), min(v.z, v.w));
        high[thread] = max(max(v.x, v.y), max(v.z, v.w));
    } else {
        high[thread] = larger(larger(larger(v.x, v.y), v.z), v.w);
    }
    workgroupBarrier();
    var smallest = low[first_lane];
    var largest = high[first_lane];
    for (var i = 1u; i < 8u; i += 1u) {
        if (RANGED) {
            smallest = min(smallest, low[first_lane + i]);
            largest = max(largest, high[first_lane + i]);
        } else {
            largest = larger(largest, high[first_lane + i]);
        }
    }

    var minimum = 0.0;
    var d = 0.0;
    if (RANGED) {
        minimum = clamp(smallest, -F16_MAX, F16_MAX);
        d = max(largest - minimum, 0.0) / select(15.0, 31.0, BITS == 5u);
    } else if (BITS == 8u) {
        d = abs(largest) / 127.0;
    } else {
        d = largest * select(-0.125, -0.0625, BITS == 5u);
    }
    d = clamp(d, -F16_MAX, F16_MAX);
    let d_bits = scale_bits(d);
    // A scale that is stored as 0 makes every code that of 0.
    var inverse = 0.0;
    if (d_bits != 0u) {
        inverse = 1.0 / d;
    }

    // Codes as the four bytes of a word.
    var code = vec4<u32>(0u);
    if (BITS == 8u) {
        code = vec4<u32>(round_away(clamp(v * inverse, vec4<f32>(-127.0), vec4<f32>(127.0)))) & vec4<u32>(255u);
    } else {
        let most = select(15.0, 31.0, BITS == 5u);
        let offset = select(0.5 * most + 1.0, 0.5, RANGED);
        code = vec4<u32>(clamp((v - minimum) * inverse + offset, vec4<f32>(0.0), vec4<f32>(most)));
    }
    codes[thread] = code.x | (code.y << 8u) | (code.z << 16u) | (code.w << 24u);
    if (lane == 0u) {
        scales[thread / 8u] = d_bits;
    }
    workgroupBarrier();
    if (cell == NONE || in_row >= n_blocks) {
        return;
    }

    // Scales without a minimum lie at the front of the row, two a word; the odd block may not exist.
    if (!RANGED && lane == 6u && in_row % 2u == 0u) {
        let next = select(0u, scales[thread / 8u + 1u], in_row + 1u < n_blocks);
        store(cell + in_row / 2u, d_bits | (next << 16u));
    }
    // Then the words of the block: scale and minimum, fifth bits, codes.
    let head_words = select(0u, 1u, RANGED) + select(0u, 1u, BITS == 5u);
    let code_words = select(4u, 8u, BITS == 8u);
    let words = cell + rows.narrow + in_row * (head_words + code_words);
    if (BITS == 8u) {
        store(words + lane, codes[thread]);
        return;
    }
    if (lane < 4u) {
        let nibbles = (codes[thread] & 0x0f0f0f0fu) | ((codes[thread + 4u] & 0x0f0f0f0fu) << 4u);
        store(words + head_words + lane, nibbles);
    }
    if (BITS == 5u && lane == 4u) {
        var fifth = 0u;
        for (var i = 0u; i < 8u; i += 1u) {
            let bits = (codes[first_lane + i] >> 4u) & 0x01010101u;
            fifth |= ((bits | (bits >> 7u) | (bits >> 14u) | (bits >> 21u)) & 15u) << (4u * i);
        }
        store(words + head_words - 1u, fifth);
    }
    if (RANGED && lane == 5u) {
        store(words, d_bits | (scale_bits(minimum) << 16u));
    }
}
