// iq1_m: `d * (2 s + 1) * (grid + delta)`; words: 8 of index bytes, 4 of nibbles (high index bits, sign of delta), 2 of u16 with 3-bit scales and the nibbles of d.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 28u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let w0 = SELF_word(tile, h, 12u);
    let w1 = SELF_word(tile, h, 13u);
    let d = low_f16(
        field(w0, 12u, 15u)
            | (field(w0, 28u, 15u) << vec4<u32>(4u))
            | (field(w1, 12u, 15u) << vec4<u32>(8u))
            | (field(w1, 28u, 15u) << vec4<u32>(12u)),
    );
    let word = select(w0, w1, run > 7u);
    let code = field(word, 16u * ((run >> 2u) & 1u) + 3u * (run & 3u), 7u);
    return Scale(d * vec4<f32>(vec4<u32>(1u) + vec4<u32>(2u) * code), vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let entry = quad >> 1u;
    let nibble = field(SELF_word(tile, h, 8u + (entry >> 3u)), 4u * (entry & 7u), 15u);
    let low = field(SELF_word(tile, h, entry >> 2u), 8u * (entry & 3u), 255u);
    let entries = SELF_entries(low | ((nibble & vec4<u32>(7u)) << vec4<u32>(8u)));
    let delta = select(vec4<f32>(0.125), vec4<f32>(-0.125), nibble > vec4<u32>(7u));
    return SELF_codes(entries >> vec4<u32>(8u * (quad & 1u)), delta);
}

// Codes -1, 0, 1 plus `delta`.
fn SELF_codes(entries: vec4<u32>, delta: vec4<f32>) -> mat4x4<f32> {
    let shift = delta - vec4<f32>(1.0);
    return mat4x4<f32>(
        vec4<f32>(field(entries, 0u, 3u)) + shift,
        vec4<f32>(field(entries, 2u, 3u)) + shift,
        vec4<f32>(field(entries, 4u, 3u)) + shift,
        vec4<f32>(field(entries, 6u, 3u)) + shift,
    );
}

// Entries of the codebook, 16 bits each, two a word.
fn SELF_entries(index: vec4<u32>) -> vec4<u32> {
    let words = vec4<u32>(
        SELF_table[index.x >> 1u],
        SELF_table[index.y >> 1u],
        SELF_table[index.z >> 1u],
        SELF_table[index.w >> 1u],
    );
    return (words >> (vec4<u32>(16u) * (index & vec4<u32>(1u)))) & vec4<u32>(0xffffu);
}
