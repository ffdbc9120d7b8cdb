// q4_k: `d * s * q - dmin * m`; words: d and dmin, 3 of scales and minima, 32 of nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 72u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = true;
const SELF_SPLIT = false;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    return k_scale(
        SELF_word(tile, h, 0u),
        SELF_word(tile, h, 1u),
        SELF_word(tile, h, 2u),
        SELF_word(tile, h, 3u),
        run >> 1u,
    );
}

fn SELF_packed(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    let words = SELF_word(tile, h, 4u + 8u * (quad >> 4u) + (quad & 7u));
    return field(words, 4u * ((quad >> 3u) & 1u), 0x0f0f0f0fu);
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    return byte_codes(SELF_packed(tile, h, quad), 255u, 0.0);
}
