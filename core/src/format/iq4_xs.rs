//! `iq4_xs`: 256 elements in 8 sub-blocks, `x = d * (ls - 32) * VALUES[nib]`.
//!
//! Bytes: `d` f16 at 0, high bit pairs of the scale codes u16 at 2, their low nibbles in 4 bytes at 4,
//! 128 nibble bytes at 8: each sub-block is 16 bytes in the order of `q4_0`.

use super::iq4_nl::VALUES;
use super::{f16_at, u16_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let scales_high = u16_at(block, 2);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = u16::from(block[4 + j / 2] >> (4 * (j % 2))) & 15;
        let high = (scales_high >> (2 * j)) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        let (first, second) = out.split_at_mut(16);
        let codes = &block[8 + 16 * j..][..16];
        for ((first, second), &byte) in first.iter_mut().zip(second).zip(codes) {
            *first = scale * f32::from(VALUES[usize::from(byte & 15)]);
            *second = scale * f32::from(VALUES[usize::from(byte >> 4)]);
        }
    }
}
