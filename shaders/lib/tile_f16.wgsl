// f16: two columns a word; a tile here is 8 of the layout.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 16u;
const SELF_RUNS = 1u;
const SELF_SCALED = false;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    return Scale(vec4<f32>(1.0), vec4<f32>());
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    let at = tile + 4u * quad + h;
    let w0 = SELF_data[at];
    let w1 = SELF_data[at + 2u];
    return mat4x4<f32>(low_f16(w0), high_f16(w0), low_f16(w1), high_f16(w1));
}
