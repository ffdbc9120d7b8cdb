//! `tq1_0`: 256 ternary elements, `x = d * (digit - 1)`.
//!
//! Bytes: 48 bytes of five base-3 digits at 0, 4 bytes of four digits at 48, `d` f16 at 52. A byte is a
//! fixed-point fraction of 256: multiplying by 3 carries out its digits from the most significant one.

use super::f16_at;

/// Digit `n` of every byte, `n = out index / bytes.len()`.
#[inline]
fn decode_digits(d: f32, bytes: &[u8], out: &mut [f32]) {
    let mut power = 1_u8; // 3^n mod 256
    for out in out.chunks_exact_mut(bytes.len()) {
        for (x, &byte) in out.iter_mut().zip(bytes) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *x = d * (f32::from(digit) - 1.0);
        }
        power = power.wrapping_mul(3);
    }
}

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    decode_digits(d, &block[..32], &mut out[..160]);
    decode_digits(d, &block[32..48], &mut out[160..240]);
    decode_digits(d, &block[48..52], &mut out[240..]);
}
