//! `iq2_xs`: 256 elements in 16 sub-blocks, `x = d * (0.5 + s) * 0.25 * grid * sign`.
//!
//! Bytes: `d` f16 at 0, 32 u16 at 2 (9-bit index and 7-bit sign word for 8 elements), 16 four-bit
//! scales at 66, low nibble first.

use super::codebook::IQ2_XS;
use super::grid::{decode_iq2, seven_signs};
use super::{f16_at, u16_at};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let w = u16_at(block, 2 + 2 * j);
        let s = (block[66 + j / 4] >> (4 * (j % 4 / 2))) & 15;
        let scale = d * (0.5 + f32::from(s)) * 0.25;
        let signs = seven_signs(u32::from(w >> 9));
        decode_iq2(&IQ2_XS, usize::from(w & 511), scale, signs, out);
    }
}
