//! `q4_1`: 32 elements, `x = d * nib + m`.
//!
//! Bytes: `d` f16 at 0, `m` f16 at 2, 16 nibble bytes at 4 in the order of `q4_0`.

use super::encode::{Ranged, code_of, join_nibbles};
use super::{EncodeFlags, f16_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 20], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let m = f16_at(block, 2);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = d * f32::from(byte & 15) + m;
        *high = d * f32::from(byte >> 4) + m;
    }
}

/// Encodes one block: `m = min`, `d = (max - min) / 15`, code `min(15, trunc((x - m) / d + 0.5))`.
#[inline]
pub fn encode_block(x: &[f32; 32], out: &mut [u8; 20]) -> EncodeFlags {
    let block = Ranged::new(x, 15.0);
    out[..2].copy_from_slice(&block.d_bits);
    out[2..4].copy_from_slice(&block.m_bits);
    let codes = block
        .x
        .map(|x| code_of((x - block.m) * block.inverse + 0.5, 15));
    join_nibbles(&codes, &mut out[4..]);
    block.flags
}
