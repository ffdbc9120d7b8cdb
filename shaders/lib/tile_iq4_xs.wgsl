// iq4_xs: `d * (s - 32) * VALUES[nibble]`; words: d and high scale bits, low scale nibbles, 32 of nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 68u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let sub = run >> 1u;
    let header = SELF_word(tile, h, 0u);
    let low = field(SELF_word(tile, h, 1u), 4u * sub, 15u);
    let high = field(header, 16u + 2u * sub, 3u);
    let code = vec4<f32>(low | (high << vec4<u32>(4u))) - vec4<f32>(32.0);
    return Scale(low_f16(header) * code, vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let words = SELF_word(tile, h, 2u + 4u * (quad >> 3u) + (quad & 3u));
    return iq4_codes(words >> vec4<u32>(4u * ((quad >> 2u) & 1u)));
}
