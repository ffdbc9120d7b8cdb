//! What can be wrong with a GGUF file, a shard set or a metadata key.

use std::io;
use std::path::PathBuf;

use gemel_core::dtype::DTypeError;

/// A GGUF file that cannot be read, or a metadata key that cannot be used.
///
/// Positions are bytes from the start of the file. Text taken from the file is escaped and clipped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// No file of this name exists.
    #[error("{} not found; check the path", path.display())]
    NotFound {
        /// The file asked for.
        path: PathBuf,
    },
    /// A directory, a pipe or a device where a file is needed.
    #[error("{} is {found}, not a file; give the path of a .gguf file", path.display())]
    NotAFile {
        /// The path asked for.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// The operating system refused to open, map or measure the file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file got shorter or longer while it was in use.
    #[error(
        "{} changed from {expected} to {found} bytes while in use; do not write to a model that is loaded", path.display()
    )]
    Changed {
        /// The file concerned.
        path: PathBuf,
        /// Its length when it was opened.
        expected: u64,
        /// Its length now.
        found: u64,
    },
    /// Something is wrong inside this file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong in it.
        error: Box<GgufError>,
    },

    /// Not even a header fits.
    #[error(
        "file has {n_bytes} bytes, a GGUF header needs 24; the download is incomplete or the file empty"
    )]
    TooShort {
        /// Length of the file.
        n_bytes: usize,
    },
    /// The first four bytes are not `GGUF`.
    #[error("file begins with \"{}\", not \"GGUF\"; {hint}", magic.escape_ascii())]
    NotGguf {
        /// What the file begins with.
        magic: [u8; 4],
        /// What the file looks like and what to do.
        hint: &'static str,
    },
    /// The file was written for a big-endian machine.
    #[error(
        "version field {version:#010x} is byte-swapped: this is a big-endian file; convert it to little-endian"
    )]
    ByteOrder {
        /// The field as read.
        version: u32,
    },
    /// Not a version this engine reads.
    #[error("GGUF version {version} is not supported, versions 2 and 3 are; {remedy}")]
    Version {
        /// The version in the file.
        version: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// A field reaches beyond the end of the file.
    #[error(
        "{field} at byte {at} needs {needed} bytes, {left} are left; the file is damaged or its download incomplete"
    )]
    Truncated {
        /// The field.
        field: String,
        /// Where it begins.
        at: u64,
        /// How many bytes it needs at least.
        needed: u128,
        /// How many the file has from there on.
        left: u64,
    },
    /// A count or a length above what any model needs.
    #[error("{field} at byte {at} is {found}, at most {limit} is accepted; the file is damaged")]
    Limit {
        /// The field.
        field: String,
        /// Where it stands.
        at: u64,
        /// Its value.
        found: u64,
        /// The largest accepted value.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{field} at byte {at} is not valid UTF-8; the file is damaged")]
    Utf8 {
        /// The field.
        field: String,
        /// Where its bytes begin.
        at: u64,
    },
    /// A key or a tensor name that the format does not allow.
    #[error("{field} at byte {at} is \"{found}\", which {problem}")]
    Name {
        /// The field.
        field: String,
        /// Where its bytes begin.
        at: u64,
        /// The name, escaped and clipped.
        found: String,
        /// Why it is not accepted.
        problem: &'static str,
    },
    /// A metadata key occurs twice.
    #[error("metadata key `{key}` occurs twice; the file is damaged")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type id outside the format's table.
    #[error("{field} at byte {at} has value type {id}, types 0 to 12 exist; the file is damaged")]
    ValueType {
        /// The field.
        field: String,
        /// Where the id stands.
        at: u64,
        /// The id.
        id: u32,
    },
    /// An array of arrays.
    #[error(
        "metadata key `{key}` at byte {at} is an array of arrays, which no known model uses; it is not supported"
    )]
    NestedArray {
        /// The key.
        key: String,
        /// Where the element type stands.
        at: u64,
    },
    /// A bool that is neither 0 nor 1.
    #[error("{field} at byte {at} is {found}, a bool is 0 or 1; the file is damaged")]
    Bool {
        /// The field.
        field: String,
        /// Where the byte stands.
        at: u64,
        /// The byte.
        found: u8,
    },
    /// `general.alignment` breaks its rules.
    #[error(
        "general.alignment is {found}, needed is a u32 power of two from 8 to 65536; the file is damaged"
    )]
    Alignment {
        /// The type or the value found.
        found: String,
    },

    /// A tensor has no axes or more than four.
    #[error("tensor `{name}` has {found} axes, 1 to 4 are possible; the file is damaged")]
    NDims {
        /// The tensor.
        name: String,
        /// How many axes it claims.
        found: u32,
    },
    /// A tensor axis is empty or absurdly long.
    #[error(
        "tensor `{name}` has length {found} on axis {axis} (fastest is 0), accepted are 1 to 2^40; the file is damaged"
    )]
    Dim {
        /// The tensor.
        name: String,
        /// The axis, fastest first as in the file.
        axis: u32,
        /// Its length.
        found: u64,
    },
    /// A tensor has more elements or bytes than can be addressed.
    #[error(
        "tensor `{name}` has 2^53 elements or more, or too many bytes for this machine; the file is damaged"
    )]
    TooLarge {
        /// The tensor.
        name: String,
    },
    /// A tensor type this engine does not read.
    #[error("tensor `{name}`: {source}")]
    DType {
        /// The tensor.
        name: String,
        /// What is wrong with the type.
        source: DTypeError,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "tensor `{name}` has rows of {found} elements, {dtype} needs a multiple of {block_elems}; the file is damaged"
    )]
    RowNotBlocks {
        /// The tensor.
        name: String,
        /// Name of its type.
        dtype: &'static str,
        /// Elements in a row.
        found: u64,
        /// Elements in a block.
        block_elems: usize,
    },
    /// A tensor's data do not begin at a multiple of the alignment.
    #[error(
        "tensor `{name}` has data offset {offset}, needed is a multiple of {alignment}; the file is damaged"
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data reach beyond the end of the file.
    #[error(
        "tensor `{name}` needs {n_bytes} bytes at offset {offset} of the data section, the file ends after {available}; \
         the file is damaged or its download incomplete"
    )]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// Its size.
        n_bytes: u64,
        /// Bytes in the data section.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap in the data section; the file is damaged")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
    /// A tensor name occurs twice, in one file or in two shards.
    #[error(
        "tensor `{name}` occurs twice; the file is damaged or shards of different models are mixed"
    )]
    DuplicateTensor {
        /// The name.
        name: String,
    },

    /// A key that is needed is absent.
    #[error(
        "metadata key `{key}` is missing, needed is {needed}; convert the model again with a current converter"
    )]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold.
        needed: &'static str,
    },
    /// A key holds the wrong type or a value out of range.
    #[error("metadata key `{key}` holds {found}, needed is {needed}")]
    BadValue {
        /// The key.
        key: String,
        /// The type or the value found.
        found: String,
        /// What it should hold.
        needed: String,
    },
    /// An override that cannot be applied.
    #[error(
        "override \"{spec}\" {problem}; the form is KEY=TYPE:VALUE with TYPE one of int, float, bool, str"
    )]
    Override {
        /// The override as given.
        spec: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A file of a shard set has a name from which the others cannot be found.
    #[error(
        "{} is shard {number} of {count}, needed is a name ending in -{number:05}-of-{count:05}.gguf; \
         give the shards back their original names", path.display()
    )]
    ShardName {
        /// The file.
        path: PathBuf,
        /// Its number from its metadata, from 1.
        number: u32,
        /// How many shards there are.
        count: u32,
    },
    /// A file of a shard set is not where its siblings are.
    #[error("shard {number} of {count} is missing: {} not found; put all shards into one folder", path.display())]
    ShardMissing {
        /// Where it should be.
        path: PathBuf,
        /// Its number, from 1.
        number: u32,
        /// How many shards there are.
        count: u32,
    },
    /// The shards together do not hold what they declare.
    #[error(
        "the {count} shards hold {found} tensors, split.tensors.count is {expected}; shards of different models are mixed"
    )]
    ShardTensors {
        /// How many shards there are.
        count: u32,
        /// Tensors found in all of them.
        found: usize,
        /// Tensors declared.
        expected: u64,
    },

    /// What was to be written is not a valid file.
    #[error("cannot write tensor `{name}`: {problem}")]
    Write {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl GgufError {
    /// The same error with the name of the file it is about.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Self {
        Self::InFile {
            path: path.to_owned(),
            error: Box::new(self),
        }
    }
}

/// Text from a file made fit for a message: control characters escaped, at most about 80 characters.
pub(super) fn shown(text: &str) -> String {
    const MAX: usize = 80;
    let mut out: String = text
        .chars()
        .take(MAX)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MAX).is_some() {
        out.push('…');
    }
    out
}
