//! `iq3_s`: 256 elements in 8 groups, `x = d * (1 + 2 s) * grid * sign`.
//!
//! Bytes: `d` f16 at 0, 64 low index bytes at 2 (4 elements each), their ninth bits in 8 bytes at 66,
//! 32 sign bytes at 74, 8 four-bit scales at 106, low nibble first.

use super::codebook::IQ3_S;
use super::f16_at;
use super::grid::{decode_iq3, iq3_s_value};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (q, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let g = q / 8;
        let high = (block[66 + g] >> (q % 8)) & 1;
        let index = usize::from(block[2 + q]) | usize::from(high) << 8;
        let s = (block[106 + g / 2] >> (4 * (g % 2))) & 15;
        let scale = d * f32::from(1 + 2 * s);
        let signs = u32::from(block[74 + q / 2] >> (4 * (q % 2)));
        decode_iq3(&IQ3_S, iq3_s_value, index, scale, signs, out);
    }
}
