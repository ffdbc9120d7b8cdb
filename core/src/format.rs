//! Block formats: how the bytes of each type decode to f32, how cache types are encoded, and how
//! weights lie in device memory.
//!
//! One format a file: `decode_block` is the formula, [`decode_row`] applies it to a row. Products of
//! scales are f32, from left to right as the formula is written; a kernel may reassociate.
//!
//! # Source
//! The GGUF files in circulation; every decoder equals the Python package `gguf` 0.19.0 bit for bit
//! (`tests/formats.rs`), except `q1_0` and `q2_0`, which it does not know.
//!
//! ```
//! use gemel_core::{DType, format};
//!
//! let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
//! let mut bytes = [0; 2 * 34];
//! let flags = format::encode_row(DType::Q8_0, &x, &mut bytes);
//! assert!(!flags.non_finite);
//!
//! let mut y = [0.0; 64];
//! format::decode_row(DType::Q8_0, &bytes, &mut y);
//! assert!((y[63] - 63.0).abs() < 0.3);
//! ```

pub mod cache_row;
pub mod codebook;
mod encode;
pub mod grid;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
mod plain;
pub mod q1_0;
pub mod q2_0;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod scales;
pub mod tile8;
pub mod tq1_0;
pub mod tq2_0;

use half::f16;

use crate::DType;

/// A shape or type that a format cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The row length is not a multiple of the block length.
    #[error(
        "a row of {n_cols} elements is not a whole number of {dtype} blocks; it must be a multiple of {block_elems}"
    )]
    PartialBlock {
        /// The type of the row.
        dtype: DType,
        /// Elements in the row.
        n_cols: usize,
        /// Elements in a block.
        block_elems: usize,
    },
    /// The type is not one of [`crate::dtype::WEIGHT_TYPES`].
    #[error(
        "{dtype} cannot be the type of a weight matrix; convert it to a float or a block format"
    )]
    NotAWeight {
        /// The type asked for.
        dtype: DType,
    },
    /// The size in bytes overflows.
    #[error("a {dtype} matrix of {n_rows} x {n_cols} is too large to address")]
    TooLarge {
        /// The type of the matrix.
        dtype: DType,
        /// Rows.
        n_rows: usize,
        /// Elements in a row.
        n_cols: usize,
    },
}

/// What an encoder met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeFlags {
    /// An element was NaN (encoded as 0) or infinite (encoded as the largest finite magnitude).
    pub non_finite: bool,
}

impl std::ops::BitOr for EncodeFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            non_finite: self.non_finite | other.non_finite,
        }
    }
}

impl std::ops::BitOrAssign for EncodeFlags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Decodes a row of any type to f32. Integers and f64 are cast.
///
/// `bytes` needs no alignment.
///
/// # Panics
/// If `bytes` is not exactly the blocks of `out.len()` elements.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        dtype.row_bytes(out.len()),
        Some(bytes.len()),
        "bytes of a row of {} {dtype} elements",
        out.len()
    );
    match dtype {
        DType::F32 => plain::decode(bytes, out, f32::from_le_bytes),
        DType::F16 => plain::decode_f16(bytes, out),
        DType::BF16 => plain::decode(bytes, out, |b| {
            f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
        }),
        DType::I8 => plain::decode(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
        DType::I16 => plain::decode(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        DType::I32 => plain::decode(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I64 => plain::decode(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::F64 => plain::decode(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::U32 => plain::decode(bytes, out, |b| u32::from_le_bytes(b) as f32),
        DType::Q4_0 => decode_blocks(bytes, out, q4_0::decode_block),
        DType::Q4_1 => decode_blocks(bytes, out, q4_1::decode_block),
        DType::Q5_0 => decode_blocks(bytes, out, q5_0::decode_block),
        DType::Q5_1 => decode_blocks(bytes, out, q5_1::decode_block),
        DType::Q8_0 => decode_blocks(bytes, out, q8_0::decode_block),
        DType::Q2_K => decode_blocks(bytes, out, q2_k::decode_block),
        DType::Q3_K => decode_blocks(bytes, out, q3_k::decode_block),
        DType::Q4_K => decode_blocks(bytes, out, q4_k::decode_block),
        DType::Q5_K => decode_blocks(bytes, out, q5_k::decode_block),
        DType::Q6_K => decode_blocks(bytes, out, q6_k::decode_block),
        DType::IQ1_S => decode_blocks(bytes, out, iq1_s::decode_block),
        DType::IQ1_M => decode_blocks(bytes, out, iq1_m::decode_block),
        DType::IQ2_XXS => decode_blocks(bytes, out, iq2_xxs::decode_block),
        DType::IQ2_XS => decode_blocks(bytes, out, iq2_xs::decode_block),
        DType::IQ2_S => decode_blocks(bytes, out, iq2_s::decode_block),
        DType::IQ3_XXS => decode_blocks(bytes, out, iq3_xxs::decode_block),
        DType::IQ3_S => decode_blocks(bytes, out, iq3_s::decode_block),
        DType::IQ4_NL => decode_blocks(bytes, out, iq4_nl::decode_block),
        DType::IQ4_XS => decode_blocks(bytes, out, iq4_xs::decode_block),
        DType::TQ1_0 => decode_blocks(bytes, out, tq1_0::decode_block),
        DType::TQ2_0 => decode_blocks(bytes, out, tq2_0::decode_block),
        DType::MXFP4 => decode_blocks(bytes, out, mxfp4::decode_block),
        DType::NVFP4 => decode_blocks(bytes, out, nvfp4::decode_block),
        DType::Q1_0 => decode_blocks(bytes, out, q1_0::decode_block),
        DType::Q2_0 => decode_blocks(bytes, out, q2_0::decode_block),
    }
}

/// Whether [`encode_row`] knows the type: the cache types and `mxfp4`.
pub fn can_encode(dtype: DType) -> bool {
    crate::dtype::CACHE_TYPES.contains(&dtype) || dtype == DType::MXFP4
}

/// Encodes a row: the one definition that every backend's cache writes follow.
///
/// NaN becomes 0 and an infinity the largest finite f32, which then saturates; scales and plain f16
/// elements beyond the range are clamped to ±65504, so nothing encoded is ever non-finite. Rounding to
/// f16 and bf16 is to nearest even. A zero scale is +0.
///
/// # Panics
/// If `dtype` fails [`can_encode`], or `out` is not exactly the blocks of `x.len()` elements.
pub fn encode_row(dtype: DType, x: &[f32], out: &mut [u8]) -> EncodeFlags {
    assert_eq!(
        dtype.row_bytes(x.len()),
        Some(out.len()),
        "bytes of a row of {} {dtype} elements",
        x.len()
    );
    match dtype {
        DType::F32 => plain::encode(x, out, f32::to_le_bytes),
        DType::F16 => plain::encode(x, out, plain::f16_bytes),
        DType::BF16 => plain::encode(x, out, plain::bf16_bytes),
        DType::Q4_0 => encode_blocks(x, out, q4_0::encode_block),
        DType::Q4_1 => encode_blocks(x, out, q4_1::encode_block),
        DType::Q5_0 => encode_blocks(x, out, q5_0::encode_block),
        DType::Q5_1 => encode_blocks(x, out, q5_1::encode_block),
        DType::Q8_0 => encode_blocks(x, out, q8_0::encode_block),
        DType::MXFP4 => encode_blocks(x, out, mxfp4::encode_block),
        _ => panic!("{dtype} has no encoder"),
    }
}

/// The codebook of a type, packed for kernels: see [`grid`] for the packing and the value maps.
///
/// | type | entries | words |
/// |---|---|---|
/// | `iq2_xxs` | 256 | 128 |
/// | `iq2_xs` | 512 | 256 |
/// | `iq2_s` | 1024 | 512 |
/// | `iq3_xxs` | 256 | 128 |
/// | `iq3_s` | 512 | 256 |
/// | `iq1_s`, `iq1_m` (shared) | 2048 | 1024 |
pub fn codebook(dtype: DType) -> Option<&'static [u32]> {
    match dtype {
        DType::IQ2_XXS => Some(&codebook::IQ2_XXS),
        DType::IQ2_XS => Some(&codebook::IQ2_XS),
        DType::IQ2_S => Some(&codebook::IQ2_S),
        DType::IQ3_XXS => Some(&codebook::IQ3_XXS),
        DType::IQ3_S => Some(&codebook::IQ3_S),
        DType::IQ1_S | DType::IQ1_M => Some(&codebook::IQ1),
        _ => None,
    }
}

#[inline]
fn decode_blocks<const S: usize, const B: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode_block: impl Fn(&[u8; S], &mut [f32; B]),
) {
    let (blocks, rest) = bytes.as_chunks::<S>();
    let (out, out_rest) = out.as_chunks_mut::<B>();
    assert!(rest.is_empty() && out_rest.is_empty(), "whole blocks");
    for (block, out) in blocks.iter().zip(out) {
        decode_block(block, out);
    }
}

#[inline]
fn encode_blocks<const S: usize, const B: usize>(
    x: &[f32],
    out: &mut [u8],
    encode_block: impl Fn(&[f32; B], &mut [u8; S]) -> EncodeFlags,
) -> EncodeFlags {
    let (x, x_rest) = x.as_chunks::<B>();
    let (blocks, rest) = out.as_chunks_mut::<S>();
    assert!(rest.is_empty() && x_rest.is_empty(), "whole blocks");
    let mut flags = EncodeFlags::default();
    for (x, block) in x.iter().zip(blocks) {
        flags |= encode_block(x, block);
    }
    flags
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(bytes, at)).to_f32()
}

#[inline]
fn i8_of(byte: u8) -> f32 {
    f32::from(byte.cast_signed())
}
