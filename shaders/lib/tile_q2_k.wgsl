// q2_k: `d * s * q - dmin * m`; words: 4 of scale and minimum nibbles, 16 of two-bit codes, d and dmin.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 42u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = true;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let header = SELF_word(tile, h, 20u);
    let nibbles = SELF_word(tile, h, run >> 2u) >> vec4<u32>(8u * (run & 3u));
    return Scale(
        low_f16(header) * vec4<f32>(field(nibbles, 0u, 15u)),
        -(high_f16(header) * vec4<f32>(field(nibbles, 4u, 15u))),
    );
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let words = SELF_word(tile, h, 4u + 8u * (quad >> 5u) + (quad & 7u));
    return byte_codes(words >> vec4<u32>(2u * ((quad >> 3u) & 3u)), 3u, 0.0);
}
