//! `mxfp4`: 32 elements, `x = 2^(e - 127) * VALUES[nib]`.
//!
//! Bytes: the exponent `e` (E8M0) at 0, 16 nibble bytes at 1 in the order of `q4_0`.
//!
//! # Source
//! OCP Microscaling Formats (MX) Specification v1.0, sections 5.3.3 and 5.4.1.

use super::EncodeFlags;
use super::encode::{join_nibbles, sanitise};

/// The value of each E2M1 code, shared with `nvfp4`; code 8 is -0, which decodes to 0.
pub const VALUES: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// `2^(e - 127)`; 255 is NaN.
#[inline]
pub fn exponent_value(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0040_0000, // 2^-127 is subnormal
        255 => f32::NAN.to_bits(),
        _ => u32::from(e) << 23,
    })
}

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = exponent_value(block[0]);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[1..]) {
        *low = scale * VALUES[usize::from(byte & 15)];
        *high = scale * VALUES[usize::from(byte >> 4)];
    }
}

/// Encodes one block: `e = floor(log2 am) - 2 + 127`, nearest code, the smaller magnitude on a tie.
///
/// `am = 0` and magnitudes below `2^-125` use `e = 0`.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 17]) -> EncodeFlags {
    let (x, flags) = sanitise(x);
    let am = x.iter().fold(0.0_f32, |am, x| am.max(x.abs()));
    // The exponent field is floor(log2 am) + 127 for normal am and 0 below.
    let e = ((am.to_bits() >> 23) as u8).saturating_sub(2);
    let scale = exponent_value(e);
    out[0] = e;
    // Midpoints between neighbouring magnitudes.
    let bounds = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(|bound: f32| bound * scale);
    let codes = x.map(|x| {
        let magnitude = bounds.iter().filter(|&&bound| x.abs() > bound).count() as u8;
        let sign = if x < 0.0 && magnitude > 0 { 8 } else { 0 };
        magnitude | sign
    });
    join_nibbles(&codes, &mut out[1..]);
    flags
}
