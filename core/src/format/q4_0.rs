//! `q4_0`: 32 elements, `x = d * (nib - 8)`.
//!
//! Bytes: `d` f16 at 0, 16 nibble bytes at 2. Element `i` is the low nibble of byte `i` for
//! `i < 16` and the high nibble of byte `i - 16` above.

use super::encode::{Signed, code_of, join_nibbles};
use super::{EncodeFlags, f16_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = d * (f32::from(byte & 15) - 8.0);
        *high = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// Encodes one block: `d = sm / -8`, code `min(15, trunc(x / d + 8.5))`.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 18]) -> EncodeFlags {
    let block = Signed::new(x, -8.0);
    out[..2].copy_from_slice(&block.d_bits);
    let codes = block.x.map(|x| code_of(x * block.inverse + 8.5, 15));
    join_nibbles(&codes, &mut out[2..]);
    block.flags
}
