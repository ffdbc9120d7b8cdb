//! `q3_k`: 256 elements in 16 sub-blocks, `x = d * (code - 32) * q`, `q` in -4..=3.
//!
//! Bytes: 32 bytes of third bits at 0 (a clear bit subtracts 4), 64 bytes of two-bit codes at 32,
//! 16 six-bit scale codes in 12 bytes at 96, `d` f16 at 108.

use super::f16_at;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    let (hmask, qs, scales) = (&block[..32], &block[32..96], &block[96..108]);
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = (scales[j % 8] >> (4 * (j / 8))) & 15;
        let high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        let half = 16 * (j % 2);
        let codes = &qs[32 * (j / 8) + half..][..16];
        let shift = 2 * (j % 8 / 2);
        let bit = j / 2;
        for ((x, &byte), &mask) in out.iter_mut().zip(codes).zip(&hmask[half..half + 16]) {
            let q = (byte >> shift) & 3 | ((mask >> bit) & 1) << 2;
            *x = scale * (f32::from(q) - 4.0);
        }
    }
}
