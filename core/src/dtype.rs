//! Element types and block formats: name, elements per block, bytes per block, GGUF id.

use std::fmt;

/// How the elements of a tensor are stored.
///
/// Plain types hold one element per block; a block format holds `block_elems` elements in
/// `block_bytes` bytes. A row (the last axis) is a whole number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(
    non_camel_case_types,
    missing_docs,
    reason = "the names are the ones the GGUF format gives its types"
)]
pub enum DType {
    F32,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    F64,
    /// Device-side index type; never in files.
    U32,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// A type id of a GGUF file that this engine does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DTypeError {
    /// The format once had this id and removed it.
    #[error(
        "tensor type {id} ({name}) was removed from the GGUF format; re-quantise the model with a current converter"
    )]
    Removed {
        /// The id in the file.
        id: u32,
        /// What it used to mean.
        name: &'static str,
    },
    /// An activation format that is never stored in files.
    #[error("tensor type {id} ({name}) is an activation format and cannot be stored in a file")]
    Internal {
        /// The id in the file.
        id: u32,
        /// Its name.
        name: &'static str,
    },
    /// Not an id of the format.
    #[error("tensor type {id} is unknown; the file needs a newer engine or is damaged")]
    Unknown {
        /// The id in the file.
        id: u32,
    },
}

/// Name, GGUF id, elements per block, bytes per block: one row per type.
struct Info(DType, &'static str, Option<u32>, usize, usize);

const TABLE: &[Info] = &[
    Info(DType::F32, "f32", Some(0), 1, 4),
    Info(DType::F16, "f16", Some(1), 1, 2),
    Info(DType::BF16, "bf16", Some(30), 1, 2),
    Info(DType::I8, "i8", Some(24), 1, 1),
    Info(DType::I16, "i16", Some(25), 1, 2),
    Info(DType::I32, "i32", Some(26), 1, 4),
    Info(DType::I64, "i64", Some(27), 1, 8),
    Info(DType::F64, "f64", Some(28), 1, 8),
    Info(DType::U32, "u32", None, 1, 4),
    Info(DType::Q4_0, "q4_0", Some(2), 32, 18),
    Info(DType::Q4_1, "q4_1", Some(3), 32, 20),
    Info(DType::Q5_0, "q5_0", Some(6), 32, 22),
    Info(DType::Q5_1, "q5_1", Some(7), 32, 24),
    Info(DType::Q8_0, "q8_0", Some(8), 32, 34),
    Info(DType::Q2_K, "q2_k", Some(10), 256, 84),
    Info(DType::Q3_K, "q3_k", Some(11), 256, 110),
    Info(DType::Q4_K, "q4_k", Some(12), 256, 144),
    Info(DType::Q5_K, "q5_k", Some(13), 256, 176),
    Info(DType::Q6_K, "q6_k", Some(14), 256, 210),
    Info(DType::IQ1_S, "iq1_s", Some(19), 256, 50),
    Info(DType::IQ1_M, "iq1_m", Some(29), 256, 56),
    Info(DType::IQ2_XXS, "iq2_xxs", Some(16), 256, 66),
    Info(DType::IQ2_XS, "iq2_xs", Some(17), 256, 74),
    Info(DType::IQ2_S, "iq2_s", Some(22), 256, 82),
    Info(DType::IQ3_XXS, "iq3_xxs", Some(18), 256, 98),
    Info(DType::IQ3_S, "iq3_s", Some(21), 256, 110),
    Info(DType::IQ4_NL, "iq4_nl", Some(20), 32, 18),
    Info(DType::IQ4_XS, "iq4_xs", Some(23), 256, 136),
    Info(DType::TQ1_0, "tq1_0", Some(34), 256, 54),
    Info(DType::TQ2_0, "tq2_0", Some(35), 256, 66),
    Info(DType::MXFP4, "mxfp4", Some(39), 32, 17),
    Info(DType::NVFP4, "nvfp4", Some(40), 64, 36),
    Info(DType::Q1_0, "q1_0", Some(41), 128, 18),
    Info(DType::Q2_0, "q2_0", Some(42), 64, 18),
];

/// Every type that can be the weight of a matrix product.
pub const WEIGHT_TYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ1_S,
    DType::IQ1_M,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::MXFP4,
    DType::NVFP4,
    DType::Q1_0,
    DType::Q2_0,
];

/// Every type a key or value cache can have, K and V independently.
pub const CACHE_TYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4_1,
    DType::Q4_0,
];

impl DType {
    fn info(self) -> &'static Info {
        TABLE
            .iter()
            .find(|info| info.0 == self)
            .expect("every type has a row in the table")
    }

    /// The lower-case name used in case ids, flags and messages.
    pub fn name(self) -> &'static str {
        self.info().1
    }

    /// The type with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE
            .iter()
            .find(|info| info.1.eq_ignore_ascii_case(name))
            .map(|info| info.0)
    }

    /// The id in GGUF tensor tables, if files can carry the type.
    pub fn gguf_id(self) -> Option<u32> {
        self.info().2
    }

    /// The type with this GGUF id.
    ///
    /// # Errors
    /// Names ids that were removed from the format, that never occur in files, or that are unknown.
    pub fn from_gguf_id(id: u32) -> Result<Self, DTypeError> {
        if let Some(info) = TABLE.iter().find(|info| info.2 == Some(id)) {
            return Ok(info.0);
        }
        Err(match id {
            4 => DTypeError::Removed { id, name: "Q4_2" },
            5 => DTypeError::Removed { id, name: "Q4_3" },
            31 => DTypeError::Removed {
                id,
                name: "Q4_0_4_4",
            },
            32 => DTypeError::Removed {
                id,
                name: "Q4_0_4_8",
            },
            33 => DTypeError::Removed {
                id,
                name: "Q4_0_8_8",
            },
            36 => DTypeError::Removed {
                id,
                name: "IQ4_NL_4_4",
            },
            37 => DTypeError::Removed {
                id,
                name: "IQ4_NL_4_8",
            },
            38 => DTypeError::Removed {
                id,
                name: "IQ4_NL_8_8",
            },
            9 => DTypeError::Internal { id, name: "Q8_1" },
            15 => DTypeError::Internal { id, name: "Q8_K" },
            _ => DTypeError::Unknown { id },
        })
    }

    /// Elements in one block (1 for plain types).
    pub fn block_elems(self) -> usize {
        self.info().3
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.info().4
    }

    /// Bytes of a contiguous row of `n_elems`; `None` if it is not a whole number of blocks or overflows.
    pub fn row_bytes(self, n_elems: usize) -> Option<usize> {
        let Info(_, _, _, elems, bytes) = *self.info();
        if !n_elems.is_multiple_of(elems) {
            return None;
        }
        (n_elems / elems).checked_mul(bytes)
    }

    /// Whether blocks hold more than one element.
    pub fn is_block(self) -> bool {
        self.block_elems() > 1
    }

    /// f32, f16 or bf16.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Average bits per element.
    pub fn bits_per_elem(self) -> f64 {
        8.0 * self.block_bytes() as f64 / self.block_elems() as f64
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_round_trip() {
        for info in TABLE {
            assert_eq!(DType::from_name(info.1), Some(info.0), "{}", info.1);
            if let Some(id) = info.2 {
                assert_eq!(DType::from_gguf_id(id), Ok(info.0), "{id}");
            }
        }
    }

    #[test]
    fn removed_ids_say_so() {
        let message = DType::from_gguf_id(31).unwrap_err().to_string();
        assert!(
            message.contains("Q4_0_4_4") && message.contains("re-quantise"),
            "{message}"
        );
        assert!(
            matches!(DType::from_gguf_id(43), Err(DTypeError::Unknown { id: 43 })),
            "43 is unknown"
        );
    }
}
