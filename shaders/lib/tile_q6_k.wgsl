// q6_k: `d * s * (q - 32)`; words: 32 of low nibbles, 16 of high bit pairs, 4 of signed scales.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 105u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = true;

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    let bytes = SELF_word(tile, h, 48u + (run >> 2u)) << vec4<u32>(24u - 8u * (run & 3u));
    let code = vec4<f32>(bitcast<vec4<i32>>(bytes) >> vec4<u32>(24u));
    return Scale(tile_f16(SELF_data[tile], h) * code, vec4<f32>());
}

// The codes as bytes, not yet centred.
fn SELF_bytes(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    let half_block = quad >> 5u;
    let group = (quad >> 3u) & 3u;
    let low = SELF_word(tile, h, 16u * half_block + 8u * (group & 1u) + (quad & 7u));
    let high = SELF_word(tile, h, 32u + 8u * half_block + (quad & 7u));
    return field(low, 4u * (group >> 1u), 0x0f0f0f0fu)
        | (field(high, 2u * group, 0x03030303u) << vec4<u32>(4u));
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    return byte_codes(SELF_bytes(tile, h, quad), 255u, 32.0);
}

fn SELF_packed(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    return packed_minus(SELF_bytes(tile, h, quad), 32u);
}
