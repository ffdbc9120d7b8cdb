// f32 to f16 and bf16 by integer arithmetic: to nearest even, saturating, NaN to 0. WGSL's own conversion may round
// either way.

// Replaces what no cache can store: NaN by 0, an infinity by the largest finite value of its sign.
fn finite_bits(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    return select((bits & 0x80000000u) | min(magnitude, 0x7f7fffffu), 0u, magnitude > 0x7f800000u);
}

fn f16_bits(x: f32) -> u32 {
    let bits = finite_bits(bitcast<u32>(x));
    let magnitude = min(bits & 0x7fffffffu, 0x477fe000u);
    // Subnormal f16 below 2^-14: a multiple of 2^-24. `round` takes the even one of two.
    let small = u32(round(bitcast<f32>(min(magnitude, 0x38800000u)) * 16777216.0));
    let rounded = magnitude + 0xfffu + ((magnitude >> 13u) & 1u);
    let normal = (max(rounded, 0x38000000u) - 0x38000000u) >> 13u;
    return ((bits >> 16u) & 0x8000u) | select(normal, small, magnitude < 0x38800000u);
}

fn bf16_bits(x: f32) -> u32 {
    let bits = finite_bits(bitcast<u32>(x));
    let magnitude = min(bits & 0x7fffffffu, 0x7f7f0000u);
    return ((bits >> 16u) & 0x8000u) | ((magnitude + 0x7fffu + ((magnitude >> 16u) & 1u)) >> 16u);
}
