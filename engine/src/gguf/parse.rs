//! The bytes of one file to version, metadata and tensors, with every rule of the format enforced.

use std::fmt::Arguments;

use gemel_core::DType;

use super::error::{GgufError, shown};
use super::metadata::{Array, Metadata, Value, key_problem};
use super::{TensorInfo, alignment, tensor_name_problem};

/// Published files have under 10,000 tensors a shard and under 200 keys; these leave a factor of ten or more.
const MAX_TENSORS: u64 = 1 << 17;
const MAX_KEYS: u64 = 1 << 16;
/// The largest vocabularies and merge lists are below 2^20.
const MAX_ARRAY: u64 = 1 << 24;
/// Chat templates, the longest strings, are below 1 MiB.
const MAX_STRING: u64 = 64 << 20;
/// Name length, one character, axis count, one axis, type, offset.
const MIN_TENSOR_BYTES: u128 = 8 + 1 + 4 + 8 + 4 + 8;
/// Key length, one character, type, one-byte value.
const MIN_PAIR_BYTES: u128 = 8 + 1 + 4 + 1;
const MAX_DIM: u64 = 1 << 40;
const MAX_ELEMS: u64 = 1 << 53;

/// Version, metadata and tensors of the file whose bytes these are.
pub(super) fn parse(bytes: &[u8]) -> Result<(u32, Metadata, Vec<TensorInfo>), GgufError> {
    let mut r = Reader { bytes, at: 0 };
    let version = header(&mut r)?;
    let n_tensors = r.count(MAX_TENSORS, format_args!("tensor count"))?;
    let n_keys = r.count(MAX_KEYS, format_args!("key count"))?;
    // A count that the rest of the file cannot hold is found before anything is read.
    r.need(
        u128::from(n_keys) * MIN_PAIR_BYTES + u128::from(n_tensors) * MIN_TENSOR_BYTES,
        format_args!("directory of {n_keys} keys and {n_tensors} tensors"),
    )?;

    let mut entries = Vec::with_capacity(first_room(n_keys));
    for i in 0..n_keys {
        entries.push(pair(&mut r, i)?);
    }
    let metadata = Metadata::from_entries(entries)?;
    let alignment = alignment(&metadata)?;

    r.need(
        u128::from(n_tensors) * MIN_TENSOR_BYTES,
        format_args!("directory of {n_tensors} tensors"),
    )?;
    let mut tensors = Vec::with_capacity(first_room(n_tensors));
    for i in 0..n_tensors {
        tensors.push(tensor_info(&mut r, i, alignment)?);
    }
    place(&mut tensors, r.at as u64, alignment, bytes.len() as u64)?;
    Ok((version, metadata, tensors))
}

/// Records to make room for at once. Beyond that a list grows with what is really read: a record takes
/// several times its least size on disk, so a claimed count that the file could just hold would be dear.
fn first_room(n_claimed: u64) -> usize {
    n_claimed.min(64) as usize
}

/// Checks magic and version.
fn header(r: &mut Reader<'_>) -> Result<u32, GgufError> {
    let n_bytes = r.bytes.len();
    if let Some(&magic) = r.bytes.first_chunk::<4>()
        && magic != *b"GGUF"
    {
        return Err(GgufError::NotGguf {
            magic,
            hint: guess(r.bytes),
        });
    }
    if n_bytes < 24 {
        return Err(GgufError::TooShort { n_bytes });
    }
    r.at = 4;
    let version = r.u32(format_args!("version"))?;
    let remedy = match version {
        2 | 3 => return Ok(version),
        0 => "the file is damaged",
        // The low half of a small byte-swapped number is zero.
        v if v.trailing_zeros() >= 16 => return Err(GgufError::ByteOrder { version }),
        1 => "convert the model again with a current converter",
        _ => "the file needs a newer engine or is damaged",
    };
    Err(GgufError::Version { version, remedy })
}

/// What a file that is not GGUF looks like.
fn guess(bytes: &[u8]) -> &'static str {
    const KNOWN: &[(&[u8], &str)] = &[
        (
            b"version https://git-lfs",
            "this is a git-lfs pointer; fetch the real file with `git lfs pull`",
        ),
        (
            b"<",
            "this looks like an HTML or XML page; the download link needs a login or is wrong",
        ),
        (
            b"PK\x03\x04",
            "this is a zip archive or a PyTorch checkpoint; convert the model to GGUF",
        ),
        (
            b"\x80\x02",
            "this is a Python pickle; convert the model to GGUF",
        ),
        (b"\x1f\x8b", "this is a gzip archive; unpack it"),
        (b"\x28\xb5\x2f\xfd", "this is a zstd archive; unpack it"),
        (b"\xfd7zXZ", "this is an xz archive; unpack it"),
        (
            b"lmgg",
            "this is a GGML file, the format before GGUF; convert the model again",
        ),
        (
            b"fmgg",
            "this is a GGMF file, the format before GGUF; convert the model again",
        ),
        (
            b"tjgg",
            "this is a GGJT file, the format before GGUF; convert the model again",
        ),
        (
            b"algg",
            "this is a GGLA adapter, the format before GGUF; convert it again",
        ),
        (
            b"FUGG",
            "the magic is byte-swapped; convert the file to little-endian GGUF",
        ),
        (b"{", "this is a JSON file; give the path of the .gguf file"),
        (
            b"\0\0\0\0",
            "the file begins with zeros; its download is incomplete",
        ),
    ];
    // A safetensors file begins with the length of its JSON header.
    if bytes.get(8) == Some(&b'{') {
        return "this looks like a safetensors file; convert the model to GGUF";
    }
    KNOWN
        .iter()
        .find(|(start, _)| bytes.starts_with(start))
        .map_or("this is not a GGUF file, or it is damaged", |&(_, hint)| {
            hint
        })
}

/// Key and value number `i`.
fn pair(r: &mut Reader<'_>, i: u64) -> Result<(String, Value), GgufError> {
    let at = r.at as u64;
    let key = r.str(u16::MAX.into(), format_args!("key {i}"))?;
    if let Some(problem) = key_problem(key) {
        return Err(GgufError::Name {
            field: format!("metadata key {i}"),
            at,
            found: shown(key),
            problem,
        });
    }
    let value = value(r, key)?;
    Ok((key.to_owned(), value))
}

fn value(r: &mut Reader<'_>, key: &str) -> Result<Value, GgufError> {
    let at = r.at as u64;
    let id = r.u32(format_args!("type of key `{}`", Clip(key)))?;
    let field = format_args!("value of key `{}`", Clip(key));
    Ok(match id {
        0 => Value::U8(u8::from_le_bytes(r.array(field)?)),
        1 => Value::I8(i8::from_le_bytes(r.array(field)?)),
        2 => Value::U16(u16::from_le_bytes(r.array(field)?)),
        3 => Value::I16(i16::from_le_bytes(r.array(field)?)),
        4 => Value::U32(u32::from_le_bytes(r.array(field)?)),
        5 => Value::I32(i32::from_le_bytes(r.array(field)?)),
        6 => Value::F32(f32::from_le_bytes(r.array(field)?)),
        7 => {
            let at = r.at as u64;
            let [byte] = r.array(field)?;
            Value::Bool(bool_of(byte, at, field)?)
        }
        8 => Value::String(r.str(MAX_STRING, field)?.to_owned()),
        9 => Value::Array(array(r, key)?),
        10 => Value::U64(u64::from_le_bytes(r.array(field)?)),
        11 => Value::I64(i64::from_le_bytes(r.array(field)?)),
        12 => Value::F64(f64::from_le_bytes(r.array(field)?)),
        _ => {
            return Err(GgufError::ValueType {
                field: format!("key `{}`", shown(key)),
                at,
                id,
            });
        }
    })
}

fn bool_of(byte: u8, at: u64, field: Arguments<'_>) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::Bool {
            field: field.to_string(),
            at,
            found,
        }),
    }
}

fn array(r: &mut Reader<'_>, key: &str) -> Result<Array, GgufError> {
    let at = r.at as u64;
    let id = r.u32(format_args!("element type of key `{}`", Clip(key)))?;
    let n = r.count(
        MAX_ARRAY,
        format_args!("array length of key `{}`", Clip(key)),
    )?;
    let field = format_args!("array of key `{}`", Clip(key));
    Ok(match id {
        0 => Array::U8(r.numbers(n, u8::from_le_bytes, field)?),
        1 => Array::I8(r.numbers(n, i8::from_le_bytes, field)?),
        2 => Array::U16(r.numbers(n, u16::from_le_bytes, field)?),
        3 => Array::I16(r.numbers(n, i16::from_le_bytes, field)?),
        4 => Array::U32(r.numbers(n, u32::from_le_bytes, field)?),
        5 => Array::I32(r.numbers(n, i32::from_le_bytes, field)?),
        6 => Array::F32(r.numbers(n, f32::from_le_bytes, field)?),
        7 => {
            let at = r.at as u64;
            let bytes = r.take(n.into(), field)?;
            if let Some(i) = bytes.iter().position(|&b| b > 1) {
                return Err(GgufError::Bool {
                    field: field.to_string(),
                    at: at + i as u64,
                    found: bytes[i],
                });
            }
            Array::Bool(bytes.iter().map(|&b| b == 1).collect())
        }
        8 => Array::String(strings(r, n, key)?),
        9 => {
            return Err(GgufError::NestedArray {
                key: shown(key),
                at,
            });
        }
        10 => Array::U64(r.numbers(n, u64::from_le_bytes, field)?),
        11 => Array::I64(r.numbers(n, i64::from_le_bytes, field)?),
        12 => Array::F64(r.numbers(n, f64::from_le_bytes, field)?),
        _ => {
            return Err(GgufError::ValueType {
                field: format!("elements of key `{}`", shown(key)),
                at,
                id,
            });
        }
    })
}

/// `n` strings. They are walked once before the first allocation, so that a damaged list costs nothing.
fn strings(r: &mut Reader<'_>, n: u64, key: &str) -> Result<Vec<String>, GgufError> {
    r.need(
        u128::from(n) * 8,
        format_args!("array of key `{}`", Clip(key)),
    )?;
    let start = r.at;
    for i in 0..n {
        r.str(
            MAX_STRING,
            format_args!("string {i} of key `{}`", Clip(key)),
        )?;
    }
    r.at = start;
    let mut strings = Vec::with_capacity(n as usize);
    for i in 0..n {
        strings.push(
            r.str(
                MAX_STRING,
                format_args!("string {i} of key `{}`", Clip(key)),
            )?
            .to_owned(),
        );
    }
    Ok(strings)
}

/// Directory entry number `i`; its offset is still relative to the data section.
fn tensor_info(r: &mut Reader<'_>, i: u64, alignment: u64) -> Result<TensorInfo, GgufError> {
    let at = r.at as u64;
    let name = r.str(MAX_STRING, format_args!("name of tensor {i}"))?;
    if let Some(problem) = tensor_name_problem(name) {
        return Err(GgufError::Name {
            field: format!("name of tensor {i}"),
            at,
            found: shown(name),
            problem,
        });
    }
    let n_dims = r.u32(format_args!("axis count of tensor `{}`", Clip(name)))?;
    if !(1..=4).contains(&n_dims) {
        return Err(GgufError::NDims {
            name: shown(name),
            found: n_dims,
        });
    }
    let too_large = || GgufError::TooLarge { name: shown(name) };
    let mut shape = Vec::with_capacity(n_dims as usize);
    let mut n_elems = 1u64;
    let mut row = 1u64;
    for axis in 0..n_dims {
        let dim = r.u64(format_args!("axis {axis} of tensor `{}`", Clip(name)))?;
        if !(1..=MAX_DIM).contains(&dim) {
            return Err(GgufError::Dim {
                name: shown(name),
                axis,
                found: dim,
            });
        }
        if axis == 0 {
            row = dim;
        }
        n_elems = n_elems
            .checked_mul(dim)
            .filter(|&n| n < MAX_ELEMS)
            .ok_or_else(too_large)?;
        shape.push(usize::try_from(dim).map_err(|_| too_large())?);
    }
    // The file lists the fastest axis first; everywhere else it is the last.
    shape.reverse();

    let id = r.u32(format_args!("type of tensor `{}`", Clip(name)))?;
    let dtype = DType::from_gguf_id(id).map_err(|source| GgufError::DType {
        name: shown(name),
        source,
    })?;
    let block_elems = dtype.block_elems();
    if !row.is_multiple_of(block_elems as u64) {
        return Err(GgufError::RowNotBlocks {
            name: shown(name),
            dtype: dtype.name(),
            found: row,
            block_elems,
        });
    }
    // Rows are whole blocks, so the size of all of them is the size of one long row.
    let n_bytes = usize::try_from(n_elems)
        .ok()
        .and_then(|n| dtype.row_bytes(n))
        .ok_or_else(too_large)?;

    let offset = r.u64(format_args!("offset of tensor `{}`", Clip(name)))?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Misaligned {
            name: shown(name),
            offset,
            alignment,
        });
    }
    Ok(TensorInfo {
        name: name.to_owned(),
        dtype,
        shape,
        shard: 0,
        offset,
        n_bytes,
    })
}

/// Makes offsets absolute, and checks that every tensor is inside the file and overlaps no other.
///
/// Gaps are accepted: some writers pad more than the alignment asks for.
fn place(
    tensors: &mut [TensorInfo],
    header_end: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    if tensors.is_empty() {
        // The padding after the header is absent from some metadata-only shards.
        return Ok(());
    }
    // Cannot be reached with a file in memory, but an overflow here must not depend on that.
    let start = header_end
        .checked_next_multiple_of(alignment)
        .unwrap_or(u64::MAX);
    let available = file_bytes.saturating_sub(start);
    for t in &mut *tensors {
        let end = t.offset.checked_add(t.n_bytes as u64);
        if end.is_none_or(|end| end > available) {
            return Err(GgufError::OutOfFile {
                name: shown(&t.name),
                offset: t.offset,
                n_bytes: t.n_bytes as u64,
                available,
            });
        }
        t.offset += start;
    }
    let mut by_offset: Vec<u32> = (0..tensors.len() as u32).collect();
    by_offset.sort_unstable_by_key(|&i| tensors[i as usize].offset);
    for pair in by_offset.windows(2) {
        let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if a.offset + a.n_bytes as u64 > b.offset {
            return Err(GgufError::Overlap {
                first: shown(&a.name),
                second: shown(&b.name),
            });
        }
    }
    Ok(())
}

/// Shows at most 80 characters of a name, escaped, and only when a message is really made.
struct Clip<'a>(&'a str);

impl std::fmt::Display for Clip<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(self.0))
    }
}

/// A position in the bytes of a file; never goes past their end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Fails unless `n` bytes are left.
    fn need(&self, n: u128, field: Arguments<'_>) -> Result<(), GgufError> {
        if n <= self.left() as u128 {
            return Ok(());
        }
        Err(GgufError::Truncated {
            field: field.to_string(),
            at: self.at as u64,
            needed: n,
            left: self.left() as u64,
        })
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u128, field: Arguments<'_>) -> Result<&'a [u8], GgufError> {
        self.need(n, field)?;
        // `need` has shown that `n` is at most the length of a slice.
        let end = self.at + n as usize;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u128, field)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    fn u32(&mut self, field: Arguments<'_>) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: Arguments<'_>) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A u64 that is at most `limit`.
    fn count(&mut self, limit: u64, field: Arguments<'_>) -> Result<u64, GgufError> {
        let at = self.at as u64;
        let found = self.u64(field)?;
        if found > limit {
            return Err(GgufError::Limit {
                field: field.to_string(),
                at,
                found,
                limit,
            });
        }
        Ok(found)
    }

    /// A string of at most `limit` bytes.
    fn str(&mut self, limit: u64, field: Arguments<'_>) -> Result<&'a str, GgufError> {
        let n = self.count(limit, format_args!("length of {field}"))?;
        let at = self.at as u64;
        let bytes = self.take(n.into(), field)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 {
            field: field.to_string(),
            at,
        })
    }

    /// `n` numbers of `N` bytes.
    fn numbers<T, const N: usize>(
        &mut self,
        n: u64,
        from_le_bytes: fn([u8; N]) -> T,
        field: Arguments<'_>,
    ) -> Result<Vec<T>, GgufError> {
        let bytes = self.take(u128::from(n) * N as u128, field)?;
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|&b| from_le_bytes(b))
            .collect())
    }
}
