// f32: one word a column; a tile here is 16 of the layout.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 32u;
const SELF_RUNS = 1u;
const SELF_SCALED = false;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    return Scale(vec4<f32>(1.0), vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let at = tile + 8u * quad + h;
    return mat4x4<f32>(
        bitcast<vec4<f32>>(SELF_data[at]),
        bitcast<vec4<f32>>(SELF_data[at + 2u]),
        bitcast<vec4<f32>>(SELF_data[at + 4u]),
        bitcast<vec4<f32>>(SELF_data[at + 6u]),
    );
}
