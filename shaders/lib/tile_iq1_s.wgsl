// iq1_s: `d * (2 s + 1) * (grid + delta)`; words: 8 of index bytes, 4 of u16 with high index bits, scale and sign of delta.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 25u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let code = field(SELF_word(tile, h, 8u + (run >> 2u)), 16u * ((run >> 1u) & 1u) + 12u, 7u);
    let factor = vec4<f32>(vec4<u32>(1u) + vec4<u32>(2u) * code);
    return Scale(tile_f16(SELF_data[tile], h) * factor, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let entry = quad >> 1u;
    let w = field(SELF_word(tile, h, 8u + (quad >> 4u)), 16u * ((quad >> 3u) & 1u), 0xffffu);
    let low = field(SELF_word(tile, h, entry >> 2u), 8u * (entry & 3u), 255u);
    let entries = SELF_entries(low | (field(w, 3u * (entry & 3u), 7u) << vec4<u32>(8u)));
    let delta = select(vec4<f32>(0.125), vec4<f32>(-0.125), w > vec4<u32>(0x7fffu));
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
