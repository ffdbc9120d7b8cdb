//! Plain types: one element per block.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::EncodeFlags;
use super::encode::finite;

/// Elements converted at a time: enough for the vectorised f16 conversion, small enough for the stack.
const CHUNK: usize = 64;

/// Converts every `S`-byte element with `f`.
#[inline]
pub(super) fn decode<const S: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; S]) -> f32) {
    for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<S>().0) {
        *x = f(*bytes);
    }
}

/// f16, subnormals included.
pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (out, bytes) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
        let halves = &mut halves[..out.len()];
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(out);
    }
}

/// Writes every element as `S` bytes with `f`, after replacing NaN and infinities.
#[inline]
pub(super) fn encode<const S: usize>(
    x: &[f32],
    out: &mut [u8],
    f: impl Fn(f32) -> [u8; S],
) -> EncodeFlags {
    let mut non_finite = false;
    for (bytes, &x) in out.as_chunks_mut::<S>().0.iter_mut().zip(x) {
        non_finite |= !x.is_finite();
        *bytes = f(finite(x));
    }
    EncodeFlags { non_finite }
}

/// Nearest f16, ties to even; beyond the range ±65504.
#[inline]
pub(super) fn f16_bytes(x: f32) -> [u8; 2] {
    let max = f16::MAX.to_f32();
    f16::from_f32(x.clamp(-max, max)).to_le_bytes()
}

/// Nearest bf16, ties to even; beyond the range its largest finite magnitude.
#[inline]
pub(super) fn bf16_bytes(x: f32) -> [u8; 2] {
    let max = bf16::MAX.to_f32();
    bf16::from_f32(x.clamp(-max, max)).to_le_bytes()
}
