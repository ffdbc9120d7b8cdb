//! `q2_k`: 256 elements in 16 sub-blocks, `x = d * (sc & 15) * q - dmin * (sc >> 4)`.
//!
//! Bytes: 16 scale bytes at 0 (one per 16 elements), 64 bytes of two-bit codes at 16, `d` f16 at 80,
//! `dmin` f16 at 82.

use super::f16_at;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 84], out: &mut [f32; 256]) {
    let d = f16_at(block, 80);
    let dmin = f16_at(block, 82);
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let sc = block[j];
        let scale = d * f32::from(sc & 15);
        let min = dmin * f32::from(sc >> 4);
        // Eight sub-blocks share 32 bytes: two per pair of bits.
        let at = 16 + 32 * (j / 8) + 16 * (j % 2);
        let shift = 2 * (j % 8 / 2);
        for (x, &byte) in out.iter_mut().zip(&block[at..at + 16]) {
            *x = scale * f32::from((byte >> shift) & 3) - min;
        }
    }
}
