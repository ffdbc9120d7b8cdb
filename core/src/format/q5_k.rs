//! `q5_k`: 256 elements in 8 sub-blocks, `x = d * sc * q - dmin * mn` with five-bit `q`.
//!
//! Bytes: `d` f16 at 0, `dmin` f16 at 2, scales and minima at 4 as in `q4_k`, 32 bytes of fifth bits
//! at 16 (bit `j` belongs to sub-block `j`), 128 nibble bytes at 48 in the order of `q4_k`.

use super::f16_at;
use super::q4_k::scale_and_min;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 176], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, mn) = scale_and_min(scales, j);
        let scale = d * f32::from(sc);
        let min = dmin * f32::from(mn);
        let shift = 4 * (j % 2);
        let codes = &qs[32 * (j / 2)..][..32];
        for ((x, &byte), &high) in out.iter_mut().zip(codes).zip(qh) {
            let q = (byte >> shift) & 15 | ((high >> j) & 1) << 4;
            *x = scale * f32::from(q) - min;
        }
    }
}
