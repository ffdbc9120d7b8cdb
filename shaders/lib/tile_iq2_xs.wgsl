// iq2_xs: `d * (s + 0.5) / 4 * grid * sign`; words: 16 of 9-bit indices with 7 sign bits, 2 of scale nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 37u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let code = vec4<f32>(field(SELF_word(tile, h, 16u + (run >> 3u)), 4u * (run & 7u), 15u));
    return Scale(tile_f16(SELF_data[tile], h) * (code + vec4<f32>(0.5)) * 0.25, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let part = quad & 1u;
    let w = field(SELF_word(tile, h, quad >> 2u), 16u * ((quad >> 1u) & 1u), 0xffffu);
    let entries = SELF_entries(w & vec4<u32>(511u));
    let signs = seven_signs(w >> vec4<u32>(9u));
    return sign_codes(iq2_codes(entries >> vec4<u32>(8u * part)), signs >> vec4<u32>(4u * part));
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
