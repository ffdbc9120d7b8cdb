// Four channels of a cache row of f32.
fn SELF_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row + 4u * quad;
    return bitcast<vec4<f32>>(vec4<u32>(SELF_data[at], SELF_data[at + 1u], SELF_data[at + 2u], SELF_data[at + 3u]));
}
