// iq3_xxs: `d * (s + 0.5) / 2 * grid * sign`; words: 16 of index bytes, 8 of 4 sign fields and the scale.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 49u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let code = vec4<f32>(SELF_word(tile, h, 16u + (run >> 1u)) >> vec4<u32>(28u));
    return Scale(tile_f16(SELF_data[tile], h) * (code + vec4<f32>(0.5)) * 0.5, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let entries = SELF_entries(field(SELF_word(tile, h, quad >> 2u), 8u * (quad & 3u), 255u));
    let signs = seven_signs(SELF_word(tile, h, 16u + (quad >> 3u)) >> vec4<u32>(7u * ((quad >> 1u) & 3u)));
    let codes = mat4x4<f32>(
        SELF_value(field(entries, 0u, 7u)),
        SELF_value(field(entries, 3u, 7u)),
        SELF_value(field(entries, 6u, 7u)),
        SELF_value(field(entries, 9u, 7u)),
    );
    return sign_codes(codes, signs >> vec4<u32>(4u * (quad & 1u)));
}

// 4, 12, 20, 28, 36, 44, 52, 62.
fn SELF_value(c: vec4<u32>) -> vec4<f32> {
    let last = (c + vec4<u32>(1u)) >> vec4<u32>(3u);
    return vec4<f32>(vec4<u32>(4u) + vec4<u32>(8u) * c + vec4<u32>(2u) * last);
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
