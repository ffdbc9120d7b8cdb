// Four channels of a cache row of q5_0: f16 scales, two a word, then 5 words a block: the fifth bits in channel order,
// nibbles as in q4_0.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let pair = unpack2x16float(SELF_data[row + quad / 16u]);
    let d = select(pair.x, pair.y, (quad & 8u) != 0u);
    let block = row + p.SELF_narrow + (quad / 8u) * 5u;
    let fifth = SELF_data[block] >> (4u * (quad & 7u));
    let codes = SELF_data[block + 1u + (quad & 3u)] >> (quad & 4u);
    let low = (vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let high = (vec4<u32>(fifth) << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(16u);
    return d * (vec4<f32>(low | high) - 16.0);
}
