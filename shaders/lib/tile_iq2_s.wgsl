// iq2_s: `d * (s + 0.5) / 4 * grid * sign`; words: 8 of index bytes, 8 of sign bits, 2 of high index bits, 2 of scale nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 41u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let code = vec4<f32>(field(SELF_word(tile, h, 18u + (run >> 3u)), 4u * (run & 7u), 15u));
    return Scale(tile_f16(SELF_data[tile], h) * (code + vec4<f32>(0.5)) * 0.25, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let entry = quad >> 1u;
    let part = quad & 1u;
    let low = field(SELF_word(tile, h, entry >> 2u), 8u * (entry & 3u), 255u);
    let high = field(SELF_word(tile, h, 16u + (entry >> 4u)), 2u * (entry & 15u), 3u);
    let entries = SELF_entries(low | (high << vec4<u32>(8u)));
    let signs = SELF_word(tile, h, 8u + (quad >> 3u)) >> vec4<u32>(4u * (quad & 7u));
    return sign_codes(iq2_codes(entries >> vec4<u32>(8u * part)), signs);
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
