// Four channels of a cache row of bf16: the upper half of an f32.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row + 2u * quad;
    let a = SELF_data[at];
    let b = SELF_data[at + 1u];
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
