// bf16: two columns a word, each the upper half of an f32; a tile here is 8 of the layout.
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
    let half_word = vec4<u32>(16u);
    let high = vec4<u32>(0xffff0000u);
    return mat4x4<f32>(
        bitcast<vec4<f32>>(w0 << half_word),
        bitcast<vec4<f32>>(w0 & high),
        bitcast<vec4<f32>>(w1 << half_word),
        bitcast<vec4<f32>>(w1 & high),
    );
}
