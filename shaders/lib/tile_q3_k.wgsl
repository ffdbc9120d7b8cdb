// q3_k: `d * (s - 32) * (q - 4)`; words: 8 of third bits, 16 of two-bit codes, 3 of six-bit scales.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 55u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let byte = 8u * (run & 3u);
    let low = field(SELF_word(tile, h, 24u + ((run >> 2u) & 1u)), byte + 4u * (run >> 3u), 15u);
    let high = field(SELF_word(tile, h, 26u), byte + 2u * (run >> 2u), 3u);
    let code = vec4<f32>(low | (high << vec4<u32>(4u))) - vec4<f32>(32.0);
    return Scale(tile_f16(SELF_data[tile], h) * code, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let words = SELF_word(tile, h, 8u + 8u * (quad >> 5u) + (quad & 7u));
    let low = field(words, 2u * ((quad >> 3u) & 3u), 0x03030303u);
    let high = field(SELF_word(tile, h, quad & 7u), quad >> 3u, 0x01010101u);
    return byte_codes(low | (high << vec4<u32>(2u)), 7u, 4.0);
}
