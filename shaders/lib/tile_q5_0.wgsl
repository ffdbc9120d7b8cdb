// q5_0: `d * (q - 16)`; words: fifth bits, 4 of nibbles.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 11u;
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

// The codes as bytes, not yet centred.
fn SELF_bytes(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    return field(SELF_word(tile, h, 1u + (quad & 3u)), 4u * (quad >> 2u), 0x0f0f0f0fu) | spread_bits(SELF_word(tile, h, 0u) >> vec4<u32>(4u * quad), 4u);
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    return byte_codes(SELF_bytes(tile, h, quad), 255u, 16.0);
}

fn SELF_packed(tile: u32, h: u32, quad: u32) -> vec4<u32> {
    return packed_minus(SELF_bytes(tile, h, quad), 16u);
}
