//! `q8_0`: 32 elements, `x = d * q` with i8 `q`.
//!
//! Bytes: `d` f16 at 0, 32 i8 at 2.

use super::encode::Signed;
use super::{EncodeFlags, f16_at, i8_of};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (x, &byte) in out.iter_mut().zip(&block[2..]) {
        *x = d * i8_of(byte);
    }
}

/// Encodes one block: `d = am / 127`, code `x / d` rounded half away from zero.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 34]) -> EncodeFlags {
    let block = Signed::with_magnitude(x, 127.0);
    out[..2].copy_from_slice(&block.d_bits);
    for (byte, x) in out[2..].iter_mut().zip(block.x) {
        let code = (x * block.inverse).round().clamp(-127.0, 127.0) as i8;
        *byte = code.cast_unsigned();
    }
    block.flags
}
