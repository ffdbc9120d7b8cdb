//! `q6_k`: 256 elements in 16 sub-blocks, `x = d * sc * (q - 32)` with six-bit `q`.
//!
//! Bytes: 128 bytes of low nibbles at 0, 64 bytes of high bit pairs at 128, 16 i8 scales at 192
//! (one per 16 elements), `d` f16 at 208.

use super::{f16_at, i8_of};

/// Decodes one block.
#[inline]
pub fn decode_block(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * i8_of(scales[j]);
        let (half, group, at) = (j / 8, j % 8 / 2, 16 * (j % 2));
        let low = &ql[64 * half + 32 * (group % 2) + at..][..16];
        let high = &qh[32 * half + at..][..16];
        let (low_shift, high_shift) = (4 * (group / 2), 2 * group);
        for ((x, &low), &high) in out.iter_mut().zip(low).zip(high) {
            let q = (low >> low_shift) & 15 | ((high >> high_shift) & 3) << 4;
            *x = scale * (f32::from(q) - 32.0);
        }
    }
}
