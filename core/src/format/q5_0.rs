//! `q5_0`: 32 elements, `x = d * (q - 16)` with five-bit `q`.
//!
//! Bytes: `d` f16 at 0, the fifth bits `qh` u32 at 2 (bit `i` of element `i`), 16 nibble bytes at 6
//! in the order of `q4_0`.

use super::encode::{Signed, code_of, high_bits, join_nibbles};
use super::{EncodeFlags, f16_at, u32_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let qh = u32_at(block, 2);
    let (low, high) = out.split_at_mut(16);
    for (i, &byte) in block[6..].iter().enumerate() {
        let q0 = u32::from(byte & 15) | ((qh >> i) & 1) << 4;
        let q1 = u32::from(byte >> 4) | ((qh >> (i + 16)) & 1) << 4;
        low[i] = d * (q0 as f32 - 16.0);
        high[i] = d * (q1 as f32 - 16.0);
    }
}

/// Encodes one block: `d = sm / -16`, code `min(31, trunc(x / d + 16.5))`.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 22]) -> EncodeFlags {
    let block = Signed::new(x, -16.0);
    out[..2].copy_from_slice(&block.d_bits);
    let codes = block.x.map(|x| code_of(x * block.inverse + 16.5, 31));
    out[2..6].copy_from_slice(&high_bits(&codes).to_le_bytes());
    join_nibbles(&codes, &mut out[6..]);
    block.flags
}
