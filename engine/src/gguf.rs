//! GGUF files: `&[u8]` to metadata and a tensor directory; the only place that reverses axis order.
//!
//! [`Gguf::parse`] is a pure function over the bytes of one file. It trusts nothing: every count,
//! length, offset and size is checked against the length of the file before it is used, and what it
//! allocates is bounded by that length. [`GgufFile`] opens a file, or all shards of a set, maps them and
//! hands out tensors as slices of the map. [`mod@write`] makes files, for tests and synthetic models.
//!
//! # Source
//! The GGUF format text of ggml, versions 2 and 3; versions differ only in byte order.

mod error;
mod metadata;
mod parse;
mod rows;
mod shards;
pub mod write;

use gemel_core::DType;

pub use error::GgufError;
pub use metadata::{Array, MAX_LAYERS, Metadata, Value};
pub use rows::FileRows;
pub use shards::{GgufFile, TensorSource};

/// Alignment of the data section where `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Largest accepted alignment; real files have 32, some 4,096.
const MAX_ALIGNMENT: u64 = 65_536;

/// One tensor of a file: where its bytes are and how to read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, 1 to 63 bytes.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axis lengths, slowest first, last axis contiguous and a whole number of blocks; 1 to 4 axes.
    pub shape: Vec<usize>,
    /// Which file of a shard set holds it, from 0.
    pub shard: usize,
    /// First byte, from the start of that file.
    pub offset: u64,
    /// Size of the data.
    pub n_bytes: usize,
}

impl TensorInfo {
    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Metadata and tensor directory of one file, or of all shards of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// Keys and values; of a shard set, those of the first file.
    pub metadata: Metadata,
    /// Format version, 2 or 3.
    pub version: u32,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
}

impl Gguf {
    /// Reads the header of one file; `bytes` is the whole file.
    ///
    /// Every tensor is checked to be aligned, inside the file, a whole number of blocks a row, and to
    /// share no byte with another. Tensor data are not looked at.
    ///
    /// # Errors
    /// Names the field, its position and what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let (version, metadata, tensors) = parse::parse(bytes)?;
        Self::new(version, metadata, tensors)
    }

    /// The header that a writer would make of these tensors, without writing it.
    ///
    /// # Errors
    /// A name, type or shape that a file cannot hold; a tensor that occurs twice.
    pub fn from_specs(metadata: Metadata, specs: &[write::TensorSpec]) -> Result<Self, GgufError> {
        let alignment = alignment(&metadata)?;
        let mut offset = 0;
        let tensors = specs
            .iter()
            .map(|spec| {
                let n_bytes = spec.n_bytes()?;
                let info = TensorInfo {
                    name: spec.name.clone(),
                    dtype: spec.dtype,
                    shape: spec.shape.clone(),
                    shard: 0,
                    offset,
                    n_bytes,
                };
                offset = (offset + n_bytes as u64).next_multiple_of(alignment);
                Ok(info)
            })
            .collect::<Result<_, GgufError>>()?;
        Self::new(3, metadata, tensors)
    }

    /// # Errors
    /// Names a tensor that occurs twice.
    fn new(version: u32, metadata: Metadata, tensors: Vec<TensorInfo>) -> Result<Self, GgufError> {
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            let name = &tensors[pair[0] as usize].name;
            if *name == tensors[pair[1] as usize].name {
                return Err(GgufError::DuplicateTensor {
                    name: error::shown(name),
                });
            }
        }
        Ok(Self {
            metadata,
            version,
            tensors,
            by_name,
        })
    }

    /// Every tensor, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self
            .by_name
            .binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }
}

/// Why `name` cannot name a tensor, if it cannot.
fn tensor_name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > 63 {
        Some("is longer than 63 bytes")
    } else if name.chars().any(char::is_control) {
        Some("has control characters")
    } else {
        None
    }
}

/// The file's alignment from its metadata.
fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(a)) if a.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&a.into()) => {
            Ok(a.into())
        }
        Some(Value::U32(a)) => Err(GgufError::Alignment {
            found: a.to_string(),
        }),
        Some(other) => Err(GgufError::Alignment {
            found: format!("of type {}", other.type_name()),
        }),
    }
}
