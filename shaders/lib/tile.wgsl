// Tiles of weights (`core/src/format/tile8.rs`) as vectors over the four rows of half `h` of a tile: what the
// pieces `tile_TYPE` share.
//
// Such a piece, imported under a prefix, reads `SELF_data: array<SELF_Words>` (and `SELF_table: array<u32>` if the
// type has a codebook) and offers
//   SELF_TILE    elements of `SELF_data` in a tile of `16 * SELF_RUNS` columns
//   SELF_RUNS    runs of 16 columns in a tile
//   SELF_SCALED  whether a value is `scale.a * code (+ scale.b)`, or the code itself
//   SELF_MIN     whether scales have a `b`
//   SELF_SPLIT   whether the two runs of 32 columns have different scales
//   SELF_scale(tile, h, run) -> Scale
//   SELF_quad(tile, h, quad) -> mat4x4<f32>   the codes of four columns, one vector over rows each
// with `tile` an index into `SELF_data`, and for types that multiply by int8 activations
//   SELF_packed(tile, h, quad) -> vec4<u32>   the same codes as bytes of a word per row

// Values of four rows: `a * code + b`.
struct Scale {
    a: vec4<f32>,
    b: vec4<f32>,
}

// The f16 in front of a tile (two rows a word) of the rows of half `h`.
fn tile_f16(words: vec4<u32>, h: u32) -> vec4<f32> {
    let pair = select(words.xy, words.zw, h == 1u);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

// The f16 in the low halves of four words.
fn low_f16(words: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(
        unpack2x16float(words.x).x,
        unpack2x16float(words.y).x,
        unpack2x16float(words.z).x,
        unpack2x16float(words.w).x,
    );
}

// The f16 in the high halves of four words.
fn high_f16(words: vec4<u32>) -> vec4<f32> {
    return low_f16(words >> vec4<u32>(16u));
}


// `(words >> shift) & mask` for four rows.
fn field(words: vec4<u32>, shift: u32, mask: u32) -> vec4<u32> {
    return (words >> vec4<u32>(shift)) & vec4<u32>(mask);
}

// Four columns, each the low `mask` bits of a byte, minus `zero`.
fn byte_codes(words: vec4<u32>, mask: u32, zero: f32) -> mat4x4<f32> {
    let z = vec4<f32>(zero);
    return mat4x4<f32>(
        vec4<f32>(field(words, 0u, mask)) - z,
        vec4<f32>(field(words, 8u, mask)) - z,
        vec4<f32>(field(words, 16u, mask)) - z,
        vec4<f32>(field(words, 24u, mask)) - z,
    );
}

// Four columns of signed bytes.
fn signed_codes(words: vec4<u32>) -> mat4x4<f32> {
    let w = bitcast<vec4<i32>>(words);
    let top = vec4<u32>(24u);
    return mat4x4<f32>(
        vec4<f32>((w << top) >> top),
        vec4<f32>((w << vec4<u32>(16u)) >> top),
        vec4<f32>((w << vec4<u32>(8u)) >> top),
        vec4<f32>(w >> top),
    );
}

// Bit `e` of the low four bits of each row moved to bit `to` of byte `e`.
fn spread_bits(bits: vec4<u32>, to: u32) -> vec4<u32> {
    // Byte e takes bit e: the product puts a copy at distances of 7 bits.
    let spread = ((bits & vec4<u32>(15u)) * vec4<u32>(0x00204081u)) & vec4<u32>(0x01010101u);
    return spread << vec4<u32>(to);
}

// Bytes `v` in 0..=2 * zero - 1 as signed bytes `v - zero`, zero a power of two up to 64.
fn packed_minus(words: vec4<u32>, zero: u32) -> vec4<u32> {
    // With the top bit set no byte borrows from its neighbour.
    let top = vec4<u32>(0x80808080u);
    return ((words | top) - vec4<u32>(zero * 0x01010101u)) ^ top;
}

// Negates column `e` of the rows whose bit `e` of `signs` is set.
fn sign_codes(m: mat4x4<f32>, signs: vec4<u32>) -> mat4x4<f32> {
    let top = vec4<u32>(0x80000000u);
    return mat4x4<f32>(
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(m[0]) ^ ((signs << vec4<u32>(31u)) & top)),
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(m[1]) ^ ((signs << vec4<u32>(30u)) & top)),
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(m[2]) ^ ((signs << vec4<u32>(29u)) & top)),
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(m[3]) ^ ((signs << vec4<u32>(28u)) & top)),
    );
}

// Eight sign bits from seven: the eighth makes the number of minus signs even.
fn seven_signs(signs: vec4<u32>) -> vec4<u32> {
    let s = signs & vec4<u32>(127u);
    return s | ((countOneBits(s) & vec4<u32>(1u)) << vec4<u32>(7u));
}

// The value of each four-bit code of `iq4_nl` and `iq4_xs`: 16 signed bytes in four words.
fn iq4_value(code: vec4<u32>) -> vec4<f32> {
    let low = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), (code & vec4<u32>(4u)) != vec4<u32>());
    let high = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), (code & vec4<u32>(4u)) != vec4<u32>());
    let word = select(low, high, (code & vec4<u32>(8u)) != vec4<u32>());
    let shift = vec4<u32>(24u) - vec4<u32>(8u) * (code & vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(word << shift) >> vec4<u32>(24u));
}

// Four columns of `iq4_nl` codes in the low nibbles of bytes.
fn iq4_codes(words: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        iq4_value(field(words, 0u, 15u)),
        iq4_value(field(words, 8u, 15u)),
        iq4_value(field(words, 16u, 15u)),
        iq4_value(field(words, 24u, 15u)),
    );
}

// The value of an E2M1 code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.
fn e2m1_value(code: vec4<u32>) -> vec4<f32> {
    // Twice the magnitude fits a nibble.
    let shift = (code & vec4<u32>(7u)) * vec4<u32>(4u);
    let twice = vec4<f32>((vec4<u32>(0xc8643210u) >> shift) & vec4<u32>(15u));
    return select(vec4<f32>(0.5), vec4<f32>(-0.5), (code & vec4<u32>(8u)) != vec4<u32>()) * twice;
}

// Four columns of E2M1 codes in the low nibbles of bytes.
fn e2m1_codes(words: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        e2m1_value(field(words, 0u, 15u)),
        e2m1_value(field(words, 8u, 15u)),
        e2m1_value(field(words, 16u, 15u)),
        e2m1_value(field(words, 24u, 15u)),
    );
}

// Four two-bit codes of an `iq2_*` entry: 8, 25, 43.
fn iq2_codes(entries: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        iq2_value(field(entries, 0u, 3u)),
        iq2_value(field(entries, 2u, 3u)),
        iq2_value(field(entries, 4u, 3u)),
        iq2_value(field(entries, 6u, 3u)),
    );
}

fn iq2_value(c: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(8u) + vec4<u32>(17u) * c + (c >> vec4<u32>(1u)));
}

// The scale and the minimum of sub-block `j` of `q4_k` and `q5_k`: six bits each, from 12 packed bytes.
fn k_scale(header: vec4<u32>, w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, j: u32) -> Scale {
    let shift = 8u * (j & 3u);
    var sc = field(w0, shift, 63u);
    var mn = field(w1, shift, 63u);
    if (j > 3u) {
        sc = field(w2, shift, 15u) | (field(w0, shift + 6u, 3u) << vec4<u32>(4u));
        mn = field(w2, shift + 4u, 15u) | (field(w1, shift + 6u, 3u) << vec4<u32>(4u));
    }
    return Scale(low_f16(header) * vec4<f32>(sc), -(high_f16(header) * vec4<f32>(mn)));
}

// Component `lane` of a vector.
fn lane_of(v: vec4<f32>, lane: u32) -> f32 {
    return select(select(v.x, v.y, lane == 1u), select(v.z, v.w, lane == 3u), lane > 1u);
}
