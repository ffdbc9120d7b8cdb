//! `tq2_0`: 256 ternary elements as two-bit codes, `x = d * (q - 1)`.
//!
//! Bytes: 64 code bytes at 0 (each half of 128 elements is 32 bytes, element `32p + k` in bit pair
//! `p` of byte `k`), `d` f16 at 64.

use super::f16_at;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let shift = 2 * (j % 4);
        for (x, &byte) in out.iter_mut().zip(&block[32 * (j / 4)..][..32]) {
            *x = d * (f32::from((byte >> shift) & 3) - 1.0);
        }
    }
}
