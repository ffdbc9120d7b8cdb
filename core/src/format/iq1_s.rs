//! `iq1_s`: 256 elements in 8 groups, `x = d * (2 s + 1) * (grid + delta)`, `delta` = ±0.125.
//!
//! Bytes: `d` f16 at 0, 32 low index bytes at 2 (8 elements each), a u16 per group of 32 at 34: four
//! 3-bit high index parts, the 3-bit scale `s`, and the sign of `delta` on top.

use super::codebook::IQ1;
use super::grid::decode_iq1;
use super::{f16_at, u16_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let h = u16_at(block, 34 + 2 * g);
        let scale = d * f32::from(2 * ((h >> 12) & 7) + 1);
        let delta = if h >> 15 == 1 { -0.125 } else { 0.125 };
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = (h >> (3 * l)) & 7;
            let index = usize::from(block[2 + 4 * g + l]) | usize::from(high) << 8;
            decode_iq1(&IQ1, index, scale, delta, out);
        }
    }
}
