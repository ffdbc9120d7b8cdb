//! `q5_1`: 32 elements, `x = d * q + m` with five-bit `q`.
//!
//! Bytes: `d` f16 at 0, `m` f16 at 2, the fifth bits `qh` u32 at 4, 16 nibble bytes at 8, both in the
//! order of `q5_0`.

use super::encode::{Ranged, code_of, high_bits, join_nibbles};
use super::{EncodeFlags, f16_at, u32_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 24], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    let qh = u32_at(block, 4);
    let (low, high) = out.split_at_mut(16);
    for (i, &byte) in block[8..].iter().enumerate() {
        let q0 = u32::from(byte & 15) | ((qh >> i) & 1) << 4;
        let q1 = u32::from(byte >> 4) | ((qh >> (i + 16)) & 1) << 4;
        low[i] = d * q0 as f32 + m;
        high[i] = d * q1 as f32 + m;
    }
}

/// Encodes one block: `m = min`, `d = (max - min) / 31`, code `min(31, trunc((x - m) / d + 0.5))`.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 24]) -> EncodeFlags {
    let block = Ranged::new(x, 31.0);
    out[..2].copy_from_slice(&block.d_bits);
    out[2..4].copy_from_slice(&block.m_bits);
    let codes = block
        .x
        .map(|x| code_of((x - block.m) * block.inverse + 0.5, 31));
    out[4..8].copy_from_slice(&high_bits(&codes).to_le_bytes());
    join_nibbles(&codes, &mut out[8..]);
    block.flags
}
