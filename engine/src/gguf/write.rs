//! Writes GGUF version 3.
//!
//! [`Writer`] takes the tensors' data one at a time, so a model larger than memory can be written;
//! [`to_vec`] makes a small file in one call.
//!
//! ```
//! use gemel_core::DType;
//! use gemel_engine::gguf::{Gguf, Metadata, Value, write};
//!
//! let mut metadata = Metadata::new();
//! metadata.insert("general.architecture", Value::String("llama".into()));
//! let spec = write::TensorSpec { name: "output_norm.weight".into(), dtype: DType::F32, shape: vec![2] };
//! let file = write::to_vec(&metadata, &[(spec, &[0; 8])])?;
//! assert_eq!(Gguf::parse(&file)?.metadata.str("general.architecture")?, "llama");
//! # Ok::<(), gemel_engine::gguf::GgufError>(())
//! ```

use std::io::Write;
use std::path::PathBuf;

use gemel_core::DType;

use super::error::{GgufError, shown};
use super::metadata::{Array, Metadata, Value, key_problem};
use super::{GgufFile, alignment, tensor_name_problem};

/// Bytes of a tensor that [`copy`] reads and writes at a time.
const PIECE_BYTES: usize = 8 << 20;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, 1 to 63 bytes.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axis lengths, slowest first; 1 to 4 axes, the last a whole number of blocks.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Size of the data.
    ///
    /// # Errors
    /// Says which rule of the format the name, the type or the shape breaks.
    pub fn n_bytes(&self) -> Result<usize, GgufError> {
        self.checked().map(|(_, n_bytes)| n_bytes)
    }

    /// Type id and size, if the tensor can be in a file.
    fn checked(&self) -> Result<(u32, usize), GgufError> {
        let fail = |problem: String| GgufError::Write {
            name: shown(&self.name),
            problem,
        };
        if let Some(problem) = tensor_name_problem(&self.name) {
            return Err(fail(format!("its name {problem}")));
        }
        let id = self
            .dtype
            .gguf_id()
            .ok_or_else(|| fail(format!("{} cannot be stored in a file", self.dtype)))?;
        let (1..=4, Some(&row)) = (self.shape.len(), self.shape.last()) else {
            return Err(fail(format!(
                "it has {} axes, 1 to 4 are possible",
                self.shape.len()
            )));
        };
        if self.shape.contains(&0) || self.dtype.row_bytes(row).is_none() {
            return Err(fail(format!(
                "shape {:?} has an empty axis or no whole {} blocks",
                self.shape, self.dtype
            )));
        }
        let n_elems = self
            .shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let n_bytes = n_elems.and_then(|n| self.dtype.row_bytes(n));
        n_bytes
            .map(|n| (id, n))
            .ok_or_else(|| fail(format!("shape {:?} is too large", self.shape)))
    }
}

/// Writes one file: the header when made, then each tensor's data in order.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Name and size of each tensor.
    tensors: Vec<(String, usize)>,
    n_written: usize,
    /// Bytes of the next tensor that are written already.
    n_begun: usize,
    alignment: u64,
}

impl<W: Write> Writer<W> {
    /// Writes header, metadata and tensor directory.
    ///
    /// # Errors
    /// A key or tensor breaks a rule of the format, or `out` fails.
    pub fn new(mut out: W, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Self, GgufError> {
        let alignment = alignment(metadata)?;
        let mut head = Vec::new();
        head.extend_from_slice(b"GGUF");
        head.extend_from_slice(&3u32.to_le_bytes());
        head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            if let Some(problem) = key_problem(key) {
                return Err(GgufError::Write {
                    name: shown(key),
                    problem: format!("the key {problem}"),
                });
            }
            put_str(&mut head, key);
            put_value(&mut head, value);
        }
        let mut offset = 0u64;
        let mut sizes = Vec::with_capacity(tensors.len());
        for t in tensors {
            let (id, n_bytes) = t.checked()?;
            put_str(&mut head, &t.name);
            head.extend_from_slice(&(t.shape.len() as u32).to_le_bytes());
            for &dim in t.shape.iter().rev() {
                head.extend_from_slice(&(dim as u64).to_le_bytes());
            }
            head.extend_from_slice(&id.to_le_bytes());
            head.extend_from_slice(&offset.to_le_bytes());
            let end = offset
                .checked_add(n_bytes as u64)
                .and_then(|end| end.checked_next_multiple_of(alignment));
            offset = end.ok_or_else(|| GgufError::Write {
                name: shown(&t.name),
                problem: "the file would be too large".to_owned(),
            })?;
            sizes.push((t.name.clone(), n_bytes));
        }
        head.resize(head.len().next_multiple_of(alignment as usize), 0);
        out.write_all(&head).map_err(io_error)?;
        Ok(Self {
            out,
            tensors: sizes,
            n_written: 0,
            n_begun: 0,
            alignment,
        })
    }

    /// Writes the data of the next tensor.
    ///
    /// # Errors
    /// The size differs from the one announced, all tensors are written already, or the output fails.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let (name, n_bytes) = self.next()?;
        if bytes.len() != n_bytes || self.n_begun > 0 {
            let problem = format!(
                "{} bytes were given, its shape needs {n_bytes}",
                self.n_begun + bytes.len()
            );
            return Err(GgufError::Write { name, problem });
        }
        self.piece(bytes)
    }

    /// Writes more data of the next tensor, which is written once its pieces add up to its size.
    ///
    /// # Errors
    /// More bytes than were announced, all tensors are written already, or the output fails.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let (name, n_bytes) = self.next()?;
        let n_begun = self.n_begun + bytes.len();
        if n_begun > n_bytes {
            return Err(GgufError::Write {
                name,
                problem: format!("{n_begun} bytes were given, its shape needs {n_bytes}"),
            });
        }
        self.out.write_all(bytes).map_err(io_error)?;
        self.n_begun = n_begun;
        if n_begun == n_bytes {
            let padding = (n_bytes as u64).next_multiple_of(self.alignment) - n_bytes as u64;
            self.out
                .write_all(&vec![0; padding as usize])
                .map_err(io_error)?;
            self.n_written += 1;
            self.n_begun = 0;
        }
        Ok(())
    }

    /// Name and size of the next tensor.
    fn next(&self) -> Result<(String, usize), GgufError> {
        let next = self.tensors.get(self.n_written).cloned();
        next.ok_or_else(|| GgufError::Write {
            name: "-".into(),
            problem: "all tensors are written already".into(),
        })
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// A tensor has not been written, or the output fails.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some((name, _)) = self.tensors.get(self.n_written) {
            return Err(GgufError::Write {
                name: shown(name),
                problem: "its data were not given".into(),
            });
        }
        self.out.flush().map_err(io_error)?;
        Ok(self.out)
    }
}

/// A whole file in memory.
///
/// # Errors
/// As [`Writer`].
pub fn to_vec<B: AsRef<[u8]>>(
    metadata: &Metadata,
    tensors: &[(TensorSpec, B)],
) -> Result<Vec<u8>, GgufError> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut writer = Writer::new(Vec::new(), metadata, &specs)?;
    for (_, bytes) in tensors {
        writer.tensor(bytes.as_ref())?;
    }
    writer.finish()
}

/// Writes an opened model as one file, a few MiB at a time. `progress` gets the bytes of tensors done so far and in
/// all.
///
/// # Errors
/// As [`Writer`].
pub fn copy<W: Write>(
    file: &GgufFile,
    out: W,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<W, GgufError> {
    let tensors = file.gguf().tensors();
    let specs: Vec<TensorSpec> = tensors
        .iter()
        .map(|t| TensorSpec {
            name: t.name.clone(),
            dtype: t.dtype,
            shape: t.shape.clone(),
        })
        .collect();
    let mut writer = Writer::new(out, file.metadata(), &specs)?;
    let total = tensors.iter().map(|t| t.n_bytes as u64).sum();
    let mut done = 0;
    let mut scratch = Vec::new();
    for t in tensors {
        for start in (0..t.n_bytes).step_by(PIECE_BYTES) {
            let range = start..(start + PIECE_BYTES).min(t.n_bytes);
            writer.piece(file.piece(t, range.clone(), &mut scratch))?;
            done += range.len() as u64;
            file.release(t, range);
            progress(done, total);
        }
    }
    writer.finish()
}

fn io_error(source: std::io::Error) -> GgufError {
    GgufError::Io {
        action: "write",
        path: PathBuf::from("GGUF file"),
        source,
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Type id, then the value.
fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |id: u32, bytes: &[u8]| {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        Value::U8(x) => put(0, &x.to_le_bytes()),
        Value::I8(x) => put(1, &x.to_le_bytes()),
        Value::U16(x) => put(2, &x.to_le_bytes()),
        Value::I16(x) => put(3, &x.to_le_bytes()),
        Value::U32(x) => put(4, &x.to_le_bytes()),
        Value::I32(x) => put(5, &x.to_le_bytes()),
        Value::F32(x) => put(6, &x.to_le_bytes()),
        Value::Bool(x) => put(7, &[u8::from(*x)]),
        Value::String(text) => {
            put(8, &[]);
            put_str(out, text);
        }
        Value::Array(array) => {
            put(9, &[]);
            put_array(out, array);
        }
        Value::U64(x) => put(10, &x.to_le_bytes()),
        Value::I64(x) => put(11, &x.to_le_bytes()),
        Value::F64(x) => put(12, &x.to_le_bytes()),
    }
}

/// Element type id, count, then the elements.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put<T: Copy, const N: usize>(
        out: &mut Vec<u8>,
        id: u32,
        v: &[T],
        to_le_bytes: fn(T) -> [u8; N],
    ) {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(v.len() as u64).to_le_bytes());
        out.extend(v.iter().flat_map(|&x| to_le_bytes(x)));
    }
    match array {
        Array::U8(v) => put(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => put(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => put(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => put(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => put(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => put(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => put(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => put(out, 7, v, |x| [u8::from(x)]),
        Array::String(v) => {
            out.extend_from_slice(&8u32.to_le_bytes());
            out.extend_from_slice(&(v.len() as u64).to_le_bytes());
            for text in v {
                put_str(out, text);
            }
        }
        Array::U64(v) => put(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => put(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => put(out, 12, v, f64::to_le_bytes),
    }
}
