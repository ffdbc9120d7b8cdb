// Four channels of a cache row of q5_1: 6 words a block: f16 scale and minimum, the fifth bits in channel order,
// nibbles as in q4_0.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let block = row + (quad / 8u) * 6u;
    let range = unpack2x16float(SELF_data[block]);
    let fifth = SELF_data[block + 1u] >> (4u * (quad & 7u));
    let codes = SELF_data[block + 2u + (quad & 3u)] >> (quad & 4u);
    let low = (vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let high = (vec4<u32>(fifth) << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(16u);
    return range.x * vec4<f32>(low | high) + range.y;
}
