//! An opened model: one file, or all shards of a set found by name beside the file given; or none at all, for a model
//! that is made up as it is read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::rows::FileRows;
use super::{Gguf, GgufError, Metadata, TensorInfo};
use crate::mmap::MappedFile;

/// Most shards a set can have.
const MAX_SHARDS: u32 = 65_535;

/// Tensor data that come from no file.
pub trait TensorSource: fmt::Debug + Send + Sync {
    /// Writes the bytes of the tensor's data from `start` on, as many as `out` has.
    ///
    /// The same tensor and position must give the same bytes every time.
    fn fill(&self, t: &TensorInfo, start: usize, out: &mut [u8]);
}

/// A GGUF file, or all shards of a set, mapped into memory.
///
/// Shards are looked for only in the folder and under the name prefix of the file given, never under
/// anything that the metadata say.
#[derive(Debug)]
pub struct GgufFile {
    data: Arc<Data>,
    gguf: Gguf,
}

/// Where the data of tensors are.
#[derive(Debug)]
pub(super) struct Data {
    /// None where a source makes the data up.
    files: Vec<MappedFile>,
    source: Option<Box<dyn TensorSource>>,
}

impl Data {
    /// See [`GgufFile::piece`].
    pub(super) fn piece<'a>(
        &'a self,
        t: &TensorInfo,
        range: Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        match &self.source {
            Some(source) => {
                scratch.resize(range.len(), 0);
                source.fill(t, range.start, scratch);
                scratch
            }
            None => &self.mapped(t)[range],
        }
    }

    /// The data of a tensor in its file.
    fn mapped(&self, t: &TensorInfo) -> &[u8] {
        let (file, range) = self
            .place(t)
            .expect("the tensor must be one of this file's");
        &file.bytes()[range]
    }

    /// The file a tensor is in, and where.
    pub(super) fn place(&self, t: &TensorInfo) -> Option<(&MappedFile, Range<usize>)> {
        let file = self.files.get(t.shard)?;
        let start = usize::try_from(t.offset).ok()?;
        let end = start.checked_add(t.n_bytes)?;
        (end <= file.bytes().len()).then_some((file, start..end))
    }
}

impl GgufFile {
    /// Opens a file. If it is a shard of a set, any of them, opens all of the set.
    ///
    /// # Errors
    /// A file is missing, unreadable or malformed, or the shards do not belong together.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let (file, gguf) = open_one(path)?;
        match Split::of(&gguf.metadata).map_err(|error| error.in_file(path))? {
            Some(split) if split.count > 1 => Self::open_shards(path, file, gguf, split),
            _ => Ok(Self::of(vec![file], None, gguf)),
        }
    }

    /// A model without a file: its header, and what makes up the data of its tensors.
    pub fn from_source(gguf: Gguf, source: Box<dyn TensorSource>) -> Self {
        Self::of(Vec::new(), Some(source), gguf)
    }

    fn of(files: Vec<MappedFile>, source: Option<Box<dyn TensorSource>>, gguf: Gguf) -> Self {
        let data = Arc::new(Data { files, source });
        Self { data, gguf }
    }

    /// Opens all shards of the set that `given` belongs to.
    fn open_shards(
        path: &Path,
        given: MappedFile,
        given_gguf: Gguf,
        split: Split,
    ) -> Result<Self, GgufError> {
        let prefix = shard_prefix(path, split)?;
        let mut given = Some((given, given_gguf));
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        let mut first: Option<(u32, Metadata)> = None;
        for no in 0..split.count {
            let (file, gguf) = match given.take() {
                Some(given) if no == split.no => given,
                other => {
                    given = other;
                    open_shard(path, &prefix, no, split)?
                }
            };
            files.push(file);
            tensors.extend(gguf.tensors.into_iter().map(|t| TensorInfo {
                shard: no as usize,
                ..t
            }));
            first.get_or_insert((gguf.version, gguf.metadata));
        }
        let found = tensors.len();
        if found as u64 != split.n_tensors {
            return Err(GgufError::ShardTensors {
                count: split.count,
                found,
                expected: split.n_tensors,
            }
            .in_file(path));
        }
        // A set has at least two shards, so there is a first.
        let (version, metadata) = first.unwrap_or_default();
        let gguf = Gguf::new(version, metadata, tensors).map_err(|error| error.in_file(path))?;
        Ok(Self::of(files, None, gguf))
    }

    /// Metadata and tensor directory.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Metadata; of a shard set, those of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.gguf.metadata
    }

    /// Metadata, to be changed by [`Metadata::apply_override`] before the model is built.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.gguf.metadata
    }

    /// The data of a tensor of this file: the map itself, or all of what the source makes up.
    ///
    /// # Panics
    /// `t` is not one of this file's tensors.
    pub fn bytes(&self, t: &TensorInfo) -> Cow<'_, [u8]> {
        match &self.data.source {
            Some(source) => {
                let mut bytes = vec![0; t.n_bytes];
                source.fill(t, 0, &mut bytes);
                Cow::Owned(bytes)
            }
            None => Cow::Borrowed(self.data.mapped(t)),
        }
    }

    /// The bytes `range` of a tensor's data: a part of the map, or made up in `scratch`.
    ///
    /// # Panics
    /// `t` is not one of this file's tensors, or `range` is not inside its data.
    pub fn piece<'a>(
        &'a self,
        t: &TensorInfo,
        range: Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        self.data.piece(t, range, scratch)
    }

    /// The rows of a matrix, to be read one by one as long as they are needed: they keep the map.
    ///
    /// # Panics
    /// `t` is not one of this file's tensors.
    pub fn rows(&self, t: &TensorInfo) -> FileRows {
        FileRows::new(self.data.clone(), t.clone())
    }

    /// Gives back the memory of `range` of the tensor's data after use, as far as it is whole pages.
    ///
    /// Uploading a model piece by piece and releasing each piece keeps the memory in use at the size of
    /// a piece. The data stay readable. Parts of `range` outside the tensor are ignored.
    pub fn release(&self, t: &TensorInfo, range: Range<usize>) {
        let Some((file, data)) = self.data.place(t) else {
            return;
        };
        let range = range.start.min(data.len())..range.end.min(data.len());
        file.release(data.start + range.start..data.start + range.end);
    }

    /// Fails if a file has changed its length since it was opened.
    ///
    /// # Errors
    /// Names the file.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.data.files.iter().try_for_each(MappedFile::check_len)
    }

    /// Size of all files together; of a model without a file, that of its tensors.
    pub fn n_bytes(&self) -> u64 {
        if self.data.source.is_some() {
            let tensors = self.gguf.tensors.iter();
            return tensors.map(|t| t.n_bytes as u64).sum();
        }
        self.data
            .files
            .iter()
            .map(|file| file.bytes().len() as u64)
            .sum()
    }

    /// The files, in the order of their shards.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.data.files.iter().map(MappedFile::path)
    }
}

fn open_one(path: &Path) -> Result<(MappedFile, Gguf), GgufError> {
    let file = MappedFile::open(path)?;
    let gguf = Gguf::parse(file.bytes()).map_err(|error| error.in_file(path))?;
    Ok((file, gguf))
}

/// Opens shard `no` of the set that `given` belongs to.
fn open_shard(
    given: &Path,
    prefix: &str,
    no: u32,
    split: Split,
) -> Result<(MappedFile, Gguf), GgufError> {
    let path = given.with_file_name(shard_name(prefix, no, split.count));
    let (file, gguf) = open_one(&path).map_err(|error| match error {
        GgufError::NotFound { path } => GgufError::ShardMissing {
            path,
            number: no + 1,
            count: split.count,
        },
        other => other,
    })?;
    let needed = Split { no, ..split };
    let found = Split::of(&gguf.metadata).map_err(|error| error.in_file(&path))?;
    let Some(found) = found else {
        return Err(GgufError::MissingKey {
            key: "split.count".into(),
            needed: "the number of shards",
        }
        .in_file(&path));
    };
    for (key, found, needed) in [
        ("split.no", found.no.into(), needed.no.into()),
        ("split.count", found.count.into(), needed.count.into()),
        ("split.tensors.count", found.n_tensors, needed.n_tensors),
    ] {
        if found != needed {
            return Err(wrong_split(
                key,
                found,
                format!("{needed} as in the set of {}", given.display()),
            )
            .in_file(&path));
        }
    }
    Ok((file, gguf))
}

fn wrong_split(key: &str, found: u64, needed: String) -> GgufError {
    GgufError::BadValue {
        key: key.to_owned(),
        found: found.to_string(),
        needed,
    }
}

/// What a file says about the set it belongs to.
#[derive(Clone, Copy)]
struct Split {
    /// Number of this shard, from 0.
    no: u32,
    count: u32,
    /// Tensors in all shards.
    n_tensors: u64,
}

impl Split {
    /// `None` for a file that is not part of a set.
    fn of(metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let Some(count) = metadata.opt_u32("split.count")? else {
            return Ok(None);
        };
        if !(1..=MAX_SHARDS).contains(&count) {
            return Err(wrong_split(
                "split.count",
                count.into(),
                format!("1 to {MAX_SHARDS}"),
            ));
        }
        let no = metadata.u32("split.no")?;
        if no >= count {
            return Err(wrong_split(
                "split.no",
                no.into(),
                format!("less than split.count, which is {count}"),
            ));
        }
        Ok(Some(Self {
            no,
            count,
            n_tensors: metadata.u64("split.tensors.count")?,
        }))
    }
}

fn shard_name(prefix: &str, no: u32, count: u32) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)
}

/// The part of the file name that all shards share, if the name fits what the file says it is.
fn shard_prefix(path: &Path, split: Split) -> Result<String, GgufError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let suffix = shard_name("", split.no, split.count);
    let prefix = name.and_then(|name| name.strip_suffix(suffix.as_str()));
    prefix
        .map(str::to_owned)
        .ok_or_else(|| GgufError::ShardName {
            path: PathBuf::from(path),
            number: split.no + 1,
            count: split.count,
        })
}
