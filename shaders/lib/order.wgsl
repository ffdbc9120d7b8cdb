// Keys that order the bits of f32 as unsigned integers: the larger number has the larger key, -0 equals +0, NaN is
// below -inf, and no number has the key 0.
const KEY_NAN: u32 = 1u;
const KEY_NEG_INF: u32 = 0x007fffffu;

fn order_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let key = select(magnitude | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(key, KEY_NAN, magnitude > 0x7f800000u);
}
