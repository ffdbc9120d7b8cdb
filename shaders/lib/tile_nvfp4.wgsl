// nvfp4: `E4M3 * E2M1`; words: 4 scale bytes, 8 of nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 18u;
const SELF_RUNS = 4u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let byte = field(SELF_word(tile, h, 0u), 8u * run, 255u);
    let exponent = field(byte, 3u, 15u);
    let mantissa = byte & vec4<u32>(7u);
    let normal = bitcast<vec4<f32>>(
        ((exponent + vec4<u32>(120u)) << vec4<u32>(23u)) | (mantissa << vec4<u32>(20u)),
    );
    let small = vec4<f32>(mantissa) / vec4<f32>(512.0);
    let value = select(normal, small, exponent == vec4<u32>());
    return Scale(select(value, vec4<f32>(), byte == vec4<u32>(127u)), vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let words = SELF_word(tile, h, 1u + 2u * (quad >> 2u) + (quad & 1u));
    return e2m1_codes(words >> vec4<u32>(4u * ((quad >> 1u) & 1u)));
}
