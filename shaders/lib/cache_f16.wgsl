// Four channels of a cache row of f16.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row + 2u * quad;
    return vec4<f32>(unpack2x16float(SELF_data[at]), unpack2x16float(SELF_data[at + 1u]));
}
