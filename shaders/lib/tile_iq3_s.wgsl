// iq3_s: `d * (1 + 2 s) * grid * sign`; words: 16 of index bytes, 2 of high index bits, 8 of sign bits, scale nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 55u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let code = field(SELF_word(tile, h, 26u), 4u * (run >> 1u), 15u);
    let factor = vec4<f32>(vec4<u32>(1u) + vec4<u32>(2u) * code);
    return Scale(tile_f16(SELF_data[tile], h) * factor, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let low = field(SELF_word(tile, h, quad >> 2u), 8u * (quad & 3u), 255u);
    let high = field(SELF_word(tile, h, 16u + (quad >> 5u)), quad & 31u, 1u);
    let entries = SELF_entries(low | (high << vec4<u32>(8u)));
    let signs = SELF_word(tile, h, 18u + (quad >> 3u)) >> vec4<u32>(4u * (quad & 7u));
    let codes = mat4x4<f32>(
        SELF_value(field(entries, 0u, 7u)),
        SELF_value(field(entries, 3u, 7u)),
        SELF_value(field(entries, 6u, 7u)),
        SELF_value(field(entries, 9u, 7u)),
    );
    return sign_codes(codes, signs);
}

// 1, 3, .. 15.
fn SELF_value(c: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(1u) + vec4<u32>(2u) * c);
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
