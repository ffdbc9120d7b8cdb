// q2_0: `d * (q - 1)`; words: 4 of two-bit codes.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 9u;
const SELF_RUNS = 4u;
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
    let bits = SELF_word(tile, h, quad >> 2u) >> vec4<u32>(8u * (quad & 3u));
    let one = vec4<f32>(1.0);
    return mat4x4<f32>(
        vec4<f32>(field(bits, 0u, 3u)) - one,
        vec4<f32>(field(bits, 2u, 3u)) - one,
        vec4<f32>(field(bits, 4u, 3u)) - one,
        vec4<f32>(field(bits, 6u, 3u)) - one,
    );
}
