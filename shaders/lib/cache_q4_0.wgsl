// Four channels of a cache row of q4_0: f16 scales, two a word, then 4 words of nibbles a block: channels 0 to 15 in
// the low nibbles, 16 to 31 in the high ones.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let pair = unpack2x16float(SELF_data[row + quad / 16u]);
    let d = select(pair.x, pair.y, (quad & 8u) != 0u);
    let codes = SELF_data[row + p.SELF_narrow + (quad / 8u) * 4u + (quad & 3u)] >> (quad & 4u);
    return d * (vec4<f32>((vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u)) - 8.0);
}
