// Four channels of a cache row of q4_1: 5 words a block: f16 scale and minimum, then nibbles as in q4_0.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let block = row + (quad / 8u) * 5u;
    let range = unpack2x16float(SELF_data[block]);
    let codes = SELF_data[block + 1u + (quad & 3u)] >> (quad & 4u);
    return range.x * vec4<f32>((vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u)) + range.y;
}
