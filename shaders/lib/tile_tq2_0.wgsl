// tq2_0: `d * (q - 1)`; words: 16 of two-bit codes.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 33u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    return Scale(tile_f16(SELF_data[tile], h), vec4<f32>());
}

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let words = SELF_word(tile, h, 8u * (quad >> 5u) + (quad & 7u));
    return byte_codes(words >> vec4<u32>(2u * ((quad >> 3u) & 3u)), 3u, 1.0);
}
