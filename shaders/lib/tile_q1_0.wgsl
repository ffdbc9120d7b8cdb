// q1_0: `d` or `-d`; words: 4 of bits.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 9u;
const SELF_RUNS = 8u;
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
    let bits = SELF_word(tile, h, quad >> 3u) >> vec4<u32>(4u * (quad & 7u));
    let one = vec4<f32>(1.0);
    return mat4x4<f32>(
        2.0 * vec4<f32>(field(bits, 0u, 1u)) - one,
        2.0 * vec4<f32>(field(bits, 1u, 1u)) - one,
        2.0 * vec4<f32>(field(bits, 2u, 1u)) - one,
        2.0 * vec4<f32>(field(bits, 3u, 1u)) - one,
    );
}
