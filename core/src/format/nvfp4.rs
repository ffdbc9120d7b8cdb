//! `nvfp4`: 64 elements in 4 sub-blocks, `x = U(scale) * VALUES[nib]`.
//!
//! Bytes: 4 scales (unsigned E4M3) at 0, then 8 nibble bytes per sub-block at 4: low nibbles are its
//! elements 0 to 7, high nibbles 8 to 15. The per-tensor `.scale` is applied by the model graph.

use super::mxfp4::VALUES;

/// The value of an unsigned E4M3 scale: bias 7, 0x7F is zero, bit 7 is ignored.
#[inline]
pub fn scale_value(byte: u8) -> f32 {
    if byte == 0x7f {
        return 0.0;
    }
    let exponent = u32::from(byte >> 3) & 15;
    let mantissa = f32::from(byte & 7);
    if exponent == 0 {
        mantissa / 512.0
    } else {
        // 2^(exponent - 7)
        (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 120) << 23)
    }
}

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 36], out: &mut [f32; 64]) {
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = scale_value(block[s]);
        let (low, high) = out.split_at_mut(8);
        let codes = &block[4 + 8 * s..][..8];
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(codes) {
            *low = scale * VALUES[usize::from(byte & 15)];
            *high = scale * VALUES[usize::from(byte >> 4)];
        }
    }
}
