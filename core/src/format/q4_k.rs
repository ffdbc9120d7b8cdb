//! `q4_k`: 256 elements in 8 sub-blocks, `x = d * sc * q - dmin * mn`.
//!
//! Bytes: `d` f16 at 0, `dmin` f16 at 2, 8 six-bit scales and minima in 12 bytes at 4, 128 nibble
//! bytes at 16: 32 bytes hold sub-block `2p` in their low and `2p + 1` in their high nibbles.

use super::f16_at;

/// The scale and the minimum of sub-block `j`, both six bits, from the 12 packed bytes.
#[inline]
pub(super) fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4,
            (packed[j + 4] >> 4) | (packed[j] >> 6) << 4,
        )
    }
}

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 144], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let dmin = f16_at(block, 2);
    let (scales, qs) = block[4..].split_at(12);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, mn) = scale_and_min(scales, j);
        let scale = d * f32::from(sc);
        let min = dmin * f32::from(mn);
        let shift = 4 * (j % 2);
        for (x, &byte) in out.iter_mut().zip(&qs[32 * (j / 2)..][..32]) {
            *x = scale * f32::from((byte >> shift) & 15) - min;
        }
    }
}
