// Four channels of a cache row of q8_0: f16 scales, two a word, then 8 words of signed codes a block.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let pair = unpack2x16float(SELF_data[row + quad / 16u]);
    let d = select(pair.x, pair.y, (quad & 8u) != 0u);
    let codes = SELF_data[row + p.SELF_narrow + quad];
    return d * vec4<f32>(vec4<i32>(vec4<u32>(codes << 24u, codes << 16u, codes << 8u, codes)) >> vec4<u32>(24u));
}
