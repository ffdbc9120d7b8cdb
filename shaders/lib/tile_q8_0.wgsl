// q8_0: `d * i8`; words: 8 of bytes.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 17u;
const SELF_RUNS = 2u;
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
    return signed_codes(SELF_word(tile, h, quad));
}

fn SELF_packed(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    return SELF_word(tile, h, quad);
}
