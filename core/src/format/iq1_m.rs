//! `iq1_m`: 256 elements in 16 sub-blocks, `x = d * (2 s + 1) * (grid + delta)`, `delta` = ±0.125.
//!
//! Bytes: 32 low index bytes at 0 (8 elements each), 32 nibbles at 32 (three high index bits and the
//! sign of `delta`), four u16 at 48: four 3-bit scales each, and in their top nibbles the f16 `d`,
//! lowest nibble first.

use super::codebook::IQ1;
use super::grid::decode_iq1;
use super::u16_at;

/// The f16 bits of `d`, collected from the four scale words at byte 48.
#[inline]
pub fn d_bits(block: &[u8; 56]) -> u16 {
    (0..4).fold(0, |bits, k| {
        bits | (u16_at(block, 48 + 2 * k) >> 12) << (4 * k)
    })
}

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 56], out: &mut [f32; 256]) {
    let d = half::f16::from_bits(d_bits(block)).to_f32();
    for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let nib = (block[32 + j / 2] >> (4 * (j % 2))) & 15;
        let index = usize::from(block[j]) | usize::from(nib & 7) << 8;
        let delta = if nib & 8 == 8 { -0.125 } else { 0.125 };
        let s = (u16_at(block, 48 + 2 * (j / 8)) >> (3 * (j % 8 / 2))) & 7;
        let scale = d * f32::from(2 * s + 1);
        decode_iq1(&IQ1, index, scale, delta, out);
    }
}
