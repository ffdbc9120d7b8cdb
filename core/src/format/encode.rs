//! What the encoders share: one deterministic definition that every backend follows.
//!
//! - NaN becomes 0 and an infinity the largest finite f32 of its sign; both raise
//!   [`EncodeFlags::non_finite`].
//! - A scale or minimum beyond the f16 range is clamped to ±65504 *before* codes are computed, so
//!   elements the clamped scale cannot reach saturate and the others keep their values.
//! - A scale that rounds to f16 zero is stored as +0 with the codes of 0; a minimum that rounds to
//!   zero is stored as +0. So encoding a decoded block gives the same bytes again.
//! - Codes are computed from the scale before its rounding to f16, by multiplying with its f32
//!   reciprocal.

use half::f16;

use super::EncodeFlags;

/// The largest finite f16.
const F16_MAX: f32 = 65504.0;

/// Replaces what no format can store and says whether there was any.
#[inline]
pub(super) fn sanitise<const B: usize>(x: &[f32; B]) -> ([f32; B], EncodeFlags) {
    let non_finite = x.iter().any(|x| !x.is_finite());
    let x = if non_finite { x.map(finite) } else { *x };
    (x, EncodeFlags { non_finite })
}

/// NaN to 0, infinities to the largest finite magnitude.
#[inline]
pub(super) fn finite(x: f32) -> f32 {
    if x.is_nan() {
        0.0
    } else {
        x.clamp(f32::MIN, f32::MAX)
    }
}

/// The nearest f16 (ties to even), with +0 for both zeros.
#[inline]
fn f16_bits(x: f32) -> u16 {
    let bits = f16::from_f32(x).to_bits();
    if bits == 0x8000 { 0 } else { bits }
}

/// A block with one scale.
pub(super) struct Signed {
    /// The sanitised elements.
    pub x: [f32; 32],
    /// `1 / d` from the unrounded `d`; 0 if `d` is stored as 0.
    pub inverse: f32,
    /// The stored `d`.
    pub d_bits: [u8; 2],
    pub flags: EncodeFlags,
}

impl Signed {
    /// `d = sm / divisor`, where `sm` is the first element of largest magnitude, with its sign.
    #[inline]
    pub(super) fn new(x: &[f32; 32], divisor: f32) -> Self {
        let (x, flags) = sanitise(x);
        let sm = x
            .iter()
            .fold(0.0_f32, |sm, &x| if x.abs() > sm.abs() { x } else { sm });
        Self::with_scale(x, sm / divisor, flags)
    }

    /// `d = am / divisor`, where `am` is the largest magnitude.
    #[inline]
    pub(super) fn with_magnitude(x: &[f32; 32], divisor: f32) -> Self {
        let (x, flags) = sanitise(x);
        let am = x.iter().fold(0.0_f32, |am, x| am.max(x.abs()));
        Self::with_scale(x, am / divisor, flags)
    }

    #[inline]
    fn with_scale(x: [f32; 32], d: f32, flags: EncodeFlags) -> Self {
        let (d_bits, inverse) = scale_and_inverse(d);
        Self {
            x,
            inverse,
            d_bits,
            flags,
        }
    }
}

/// A block with a scale and a minimum.
pub(super) struct Ranged {
    /// The sanitised elements.
    pub x: [f32; 32],
    /// The minimum, clamped to the f16 range but not rounded to it.
    pub m: f32,
    /// `1 / d` from the unrounded `d`; 0 if `d` is stored as 0.
    pub inverse: f32,
    /// The stored `d`.
    pub d_bits: [u8; 2],
    /// The stored `m`.
    pub m_bits: [u8; 2],
    pub flags: EncodeFlags,
}

impl Ranged {
    /// `m = min`, `d = (max - m) / divisor`.
    #[inline]
    pub(super) fn new(x: &[f32; 32], divisor: f32) -> Self {
        let (x, flags) = sanitise(x);
        let min = x.iter().fold(f32::MAX, |min, &x| min.min(x));
        let max = x.iter().fold(f32::MIN, |max, &x| max.max(x));
        let m = min.clamp(-F16_MAX, F16_MAX);
        // Below -65504 everything saturates at m, so the range can be empty.
        let (d_bits, inverse) = scale_and_inverse((max - m).max(0.0) / divisor);
        let m_bits = f16_bits(m).to_le_bytes();
        Self {
            x,
            m,
            inverse,
            d_bits,
            m_bits,
            flags,
        }
    }
}

#[inline]
fn scale_and_inverse(d: f32) -> ([u8; 2], f32) {
    let d = d.clamp(-F16_MAX, F16_MAX);
    let bits = f16_bits(d);
    let inverse = if bits == 0 { 0.0 } else { 1.0 / d };
    (bits.to_le_bytes(), inverse)
}

/// `x` truncated to a code in `0..=max`.
#[inline]
pub(super) fn code_of(x: f32, max: u8) -> u8 {
    // A float to integer cast truncates and saturates.
    (x as u8).min(max)
}

/// The low four bits of 32 codes as 16 bytes: codes 0 to 15 low, 16 to 31 high.
#[inline]
pub(super) fn join_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((byte, low), high) in out.iter_mut().zip(low).zip(high) {
        *byte = (low & 15) | high << 4;
    }
}

/// Bit 4 of 32 codes as one word, bit `i` of code `i`.
#[inline]
pub(super) fn high_bits(codes: &[u8; 32]) -> u32 {
    codes
        .iter()
        .enumerate()
        .fold(0, |word, (i, &code)| word | u32::from(code >> 4) << i)
}
