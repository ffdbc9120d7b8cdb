// mxfp4: `2^(e - 127) * E2M1`; in front of a tile 8 exponent bytes, words: 4 of nibbles. Tiles are not whole vec4.
alias SELF_Words = vec2<u32>;
const SELF_TILE = 17u;
const SELF_RUNS = 2u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let exponents = SELF_data[tile];
    let word = vec4<u32>(select(exponents.x, exponents.y, h == 1u));
    let e = (word >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    // Exponent 0 is 2^-127, a subnormal.
    let bits = select(e << vec4<u32>(23u), vec4<u32>(0x00400000u), e == vec4<u32>());
    return Scale(bitcast<vec4<f32>>(bits), vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let at = tile + 1u + 4u * (quad & 3u) + 2u * h;
    let words = vec4<u32>(SELF_data[at], SELF_data[at + 1u]);
    return e2m1_codes(words >> vec4<u32>(4u * (quad >> 2u)));
}
