//! `iq2_s`: 256 elements in 16 sub-blocks, `x = d * (0.5 + s) * 0.25 * grid * sign`.
//!
//! Bytes: `d` f16 at 0, 32 low index bytes at 2 (8 elements each), 32 sign bytes at 34, high index
//! bit pairs in 8 bytes at 66, 16 four-bit scales at 74, low nibble first.

use super::codebook::IQ2_S;
use super::f16_at;
use super::grid::decode_iq2;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = (block[66 + j / 4] >> (2 * (j % 4))) & 3;
        let index = usize::from(block[2 + j]) | usize::from(high) << 8;
        let s = (block[74 + j / 4] >> (4 * (j % 4 / 2))) & 15;
        let scale = d * (0.5 + f32::from(s)) * 0.25;
        decode_iq2(&IQ2_S, index, scale, u32::from(block[34 + j]), out);
    }
}
