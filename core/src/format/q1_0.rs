//! `q1_0`: 128 one-bit elements, `x = d` for a set bit and `-d` for a clear one.
//!
//! Bytes: `d` f16 at 0, 16 bytes of bits at 2, lowest bit first.

use super::f16_at;

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    for (out, &byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
        for (k, x) in out.iter_mut().enumerate() {
            *x = if (byte >> k) & 1 == 1 { d } else { -d };
        }
    }
}
