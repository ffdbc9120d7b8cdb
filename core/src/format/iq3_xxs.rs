//! `iq3_xxs`: 256 elements in 8 groups, `x = d * (0.5 + s) * 0.5 * grid * sign`.
//!
//! Bytes: `d` f16 at 0, 64 index bytes at 2 (4 elements each), then per group of 32 a u32 at 66 with
//! four 7-bit sign words (8 elements each) and the 4-bit scale `s` on top.

use super::codebook::IQ3_XXS;
use super::grid::{decode_iq3, iq3_xxs_value, seven_signs};
use super::{f16_at, u32_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let w = u32_at(block, 66 + 4 * g);
        let scale = d * (0.5 + (w >> 28) as f32) * 0.5;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = seven_signs((w >> (7 * l)) & 127);
            for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let index = usize::from(block[2 + 8 * g + 2 * l + half]);
                decode_iq3(
                    &IQ3_XXS,
                    iq3_xxs_value,
                    index,
                    scale,
                    signs >> (4 * half),
                    out,
                );
            }
        }
    }
}
