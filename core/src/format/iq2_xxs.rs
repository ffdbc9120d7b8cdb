//! `iq2_xxs`: 256 elements in 8 groups, `x = d * (0.5 + s) * 0.25 * grid * sign`.
//!
//! Bytes: `d` f16 at 0, then 8 bytes per group of 32 at 2: four index bytes (8 elements each) and a
//! u32 with four 7-bit sign words and the 4-bit scale `s` on top.

use super::codebook::IQ2_XXS;
use super::grid::{decode_iq2, seven_signs};
use super::{f16_at, u32_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let at = 2 + 8 * g;
        let w = u32_at(block, at + 4);
        let scale = d * (0.5 + (w >> 28) as f32) * 0.25;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = seven_signs((w >> (7 * l)) & 127);
            decode_iq2(&IQ2_XXS, usize::from(block[at + l]), scale, signs, out);
        }
    }
}
