//! `iq4_nl`: 32 elements, `x = d * VALUES[nib]`.
//!
//! Bytes as `q4_0`: `d` f16 at 0, 16 nibble bytes at 2.

use super::f16_at;

/// The value of each four-bit code, shared with `iq4_xs`.
pub const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = d * f32::from(VALUES[usize::from(byte & 15)]);
        *high = d * f32::from(VALUES[usize::from(byte >> 4)]);
    }
}
