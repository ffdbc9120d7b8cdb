//! Where the floating-point scales of a block lie: the only fields whose bits can be NaN or infinite.
//!
//! Any other byte of a block may hold anything, so a loader checks a tensor, and a test makes random
//! bytes valid, through this table alone.

use half::{bf16, f16};

use crate::DType;

use super::u16_at;

/// One scale field of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleField {
    /// An f16 at this byte.
    F16(usize),
    /// A power of two (E8M0) at this byte; 255 is NaN.
    E8M0(usize),
    /// An f16 whose nibbles, lowest first, are the top nibbles of the four u16 at this byte.
    F16TopNibbles(usize),
}

/// The scale fields of a block of `dtype`. `nvfp4` has none: each of its scale bytes is finite.
pub fn scale_fields(dtype: DType) -> &'static [ScaleField] {
    use ScaleField::{E8M0, F16, F16TopNibbles};
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[F16(0), F16(2)],
        DType::Q2_K => &[F16(80), F16(82)],
        DType::Q3_K => &[F16(108)],
        DType::Q6_K => &[F16(208)],
        DType::TQ1_0 => &[F16(52)],
        DType::TQ2_0 => &[F16(64)],
        DType::IQ1_M => &[F16TopNibbles(48)],
        DType::MXFP4 => &[E8M0(0)],
        DType::Q4_0
        | DType::Q5_0
        | DType::Q8_0
        | DType::IQ1_S
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_NL
        | DType::IQ4_XS
        | DType::Q1_0
        | DType::Q2_0 => &[F16(0)],
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F64
        | DType::U32
        | DType::NVFP4 => &[],
    }
}

/// The first block of `bytes` that decodes to NaN or infinity because of a scale field (for the float
/// types: the first element that is not finite).
pub fn first_non_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let fields = scale_fields(dtype);
    bytes
        .chunks_exact(dtype.block_bytes())
        .position(|block| match dtype {
            DType::F32 => !f32::from_bits(super::u32_at(block, 0)).is_finite(),
            DType::F16 => !f16::from_bits(u16_at(block, 0)).is_finite(),
            DType::BF16 => !bf16::from_bits(u16_at(block, 0)).is_finite(),
            _ => !fields.iter().all(|field| field.is_finite(block)),
        })
}

/// Makes random bytes valid blocks: every scale becomes finite, every other bit stays.
///
/// An all-ones f16 exponent loses its top bit; a power of two is folded into `2^-37 ..= 2^33`.
pub fn make_finite(dtype: DType, bytes: &mut [u8]) {
    let fields = scale_fields(dtype);
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for field in fields {
            field.make_finite(block);
        }
    }
}

impl ScaleField {
    fn is_finite(self, block: &[u8]) -> bool {
        match self {
            Self::F16(at) => f16::from_bits(u16_at(block, at)).is_finite(),
            Self::E8M0(at) => block[at] != 255,
            Self::F16TopNibbles(at) => {
                // The exponent is the five bits below the sign: three in word 3, two in word 2.
                block[at + 7] & 0x70 != 0x70 || block[at + 5] & 0xc0 != 0xc0
            }
        }
    }

    fn make_finite(self, block: &mut [u8]) {
        match self {
            Self::F16(at) => {
                if !self.is_finite(block) {
                    block[at + 1] &= 0xbf;
                }
            }
            Self::E8M0(at) => block[at] = 90 + block[at] % 71,
            Self::F16TopNibbles(at) => {
                if !self.is_finite(block) {
                    block[at + 7] &= 0xbf;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::WEIGHT_TYPES;

    #[test]
    fn a_bad_scale_is_found_and_mended() {
        for &dtype in WEIGHT_TYPES {
            let size = dtype.block_bytes();
            let mut bytes = vec![0_u8; 3 * size];
            assert_eq!(first_non_finite(dtype, &bytes), None, "{dtype}: zeros");
            bytes[size..2 * size].fill(0xff);
            let expected = (dtype != DType::NVFP4).then_some(1);
            assert_eq!(first_non_finite(dtype, &bytes), expected, "{dtype}: ones");
            if dtype.is_block() {
                make_finite(dtype, &mut bytes);
                assert_eq!(first_non_finite(dtype, &bytes), None, "{dtype}: mended");
                let mut out = vec![0.0; 3 * dtype.block_elems()];
                super::super::decode_row(dtype, &bytes, &mut out);
                assert!(out.iter().all(|x| x.is_finite()), "{dtype}: decoded");
            }
        }
    }
}
