// tq1_0: `d * (digit - 1)`; words: 12 with five base-3 digits a byte, one with four.
alias SELF_Words = vec4<u32>;
const SELF_TILE = 27u;
const SELF_RUNS = 16u;
const SELF_SCALED = true;
const SELF_MIN = false;
const SELF_SPLIT = false;

fn SELF_scale(tile: u32, h: u32, run: u32) -> Scale {
    return Scale(tile_f16(SELF_data[tile], h), vec4<f32>());
}

fn SELF_word(tile: u32, h: u32, word: u32) -> vec4<u32> {
    return SELF_data[tile + 1u + 2u * word + h];
}

fn SELF_quad(tile: u32, h: u32, quad: u32) -> mat4x4<f32> {
    var word = quad & 7u;
    var digit = quad >> 3u;
    if (quad >= 60u) {
        word = 12u;
        digit = quad - 60u;
    } else if (quad >= 40u) {
        word = 8u + (quad & 3u);
        digit = (quad - 40u) >> 2u;
    }
    // 3^digit modulo 256, digit in 0..=4.
    let power = vec4<u32>(select((0x1b090301u >> (8u * digit)) & 255u, 81u, digit == 4u));
    let words = SELF_word(tile, h, word);
    let one = vec4<f32>(1.0);
    return mat4x4<f32>(
        vec4<f32>(SELF_digit(field(words, 0u, 255u) * power)) - one,
        vec4<f32>(SELF_digit(field(words, 8u, 255u) * power)) - one,
        vec4<f32>(SELF_digit(field(words, 16u, 255u) * power)) - one,
        vec4<f32>(SELF_digit(field(words, 24u, 255u) * power)) - one,
    );
}

// A byte is a fraction of 256: multiplying by 3 carries out its first digit.
fn SELF_digit(v: vec4<u32>) -> vec4<u32> {
    return ((v & vec4<u32>(255u)) * vec4<u32>(3u)) >> vec4<u32>(8u);
}
