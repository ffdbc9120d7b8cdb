//! `q2_0`: 64 two-bit elements, `x = d * (q - 1)`, so values are -1, 0, 1 and 2 times `d`.
//!
//! Bytes: `d` f16 at 0, 16 bytes of codes at 2, four to a byte, lowest pair first.

use super::f16_at;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16_at(block, 0);
    for (out, &byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
        for (k, x) in out.iter_mut().enumerate() {
            *x = d * (f32::from((byte >> (2 * k)) & 3) - 1.0);
        }
    }
}
