//! Tensors of a file -> device memory, following what the model asks for.
//!
//! A model first *requests* tensors by name with the shape it needs; every shape is checked before the first byte
//! is uploaded. [`Requests::upload`] then streams each tensor once: matrices are packed into tiles of 8 rows on the
//! way (see [`gemel_core::format::tile8`]), a few MiB at a time, and the mapped file range is released behind.

use std::collections::BTreeMap;

use gemel_core::device::{Buffer, Device};
use gemel_core::error::DeviceError;
use gemel_core::format;
use gemel_core::format::tile8::TILE_ROWS;
use gemel_core::graph::Tensor;
use gemel_core::op::{Caps, DeviceClass};
use gemel_core::tensor::Layout;
use gemel_core::{DType, TensorDesc, dtype};
use rayon::prelude::*;

use crate::gguf::{FileRows, GgufFile, TensorInfo};

/// Bytes of a matrix that are packed and written at a time.
const PIECE_BYTES: usize = 8 << 20;

/// What is wrong with the tensors of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The architecture needs a tensor that the file does not have.
    #[error("tensor `{name}` is missing; the file is incomplete or not of architecture `{arch}`")]
    Missing {
        /// The tensor.
        name: String,
        /// The architecture that needs it.
        arch: String,
    },
    /// A tensor has another shape than the architecture requires.
    #[error("tensor `{name}` has shape {found:?}, but {expected:?} is needed (slowest axis first)")]
    Shape {
        /// The tensor.
        name: String,
        /// What the hyper-parameters ask for.
        expected: Vec<usize>,
        /// What the file has.
        found: Vec<usize>,
    },
    /// A tensor of a type that cannot take part in a matrix product.
    #[error("tensor `{name}` has type {dtype}, which cannot be used as a weight")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// The file changed or could not be read.
    #[error(transparent)]
    Gguf(#[from] crate::gguf::GgufError),
    /// The device failed.
    #[error("loading tensor `{name}`: {source}")]
    Device {
        /// The tensor.
        name: String,
        /// Why.
        source: DeviceError,
    },
}

/// A requested tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightId(usize);

/// A matrix with what belongs to its product.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Name without `.weight`, e.g. `blk.3.attn_q`.
    pub label: String,
    /// `[d_out, d_in]`.
    pub weight: WeightId,
    /// `[d_out]`.
    pub bias: Option<WeightId>,
    /// Multiplies the product (`NAME.scale` of scaled formats); 1 otherwise.
    pub scale: f32,
}

/// A stack of experts' matrices with what belongs to their products.
#[derive(Clone, Debug)]
pub struct ExpertStack {
    /// Name without `.weight`, e.g. `blk.3.ffn_down_exps`.
    pub label: String,
    /// `[n_experts, d_out, d_in]`.
    pub weight: WeightId,
    /// Multiplies the products: `[n_experts]`, or two of these one after the other, for either half of the rows.
    pub scale: Option<WeightId>,
    /// `[n_experts * d_out]`.
    pub bias: Option<WeightId>,
}

/// A matrix of which a step reads a few rows.
#[derive(Clone, Debug)]
pub struct RowTable {
    /// Where it is.
    pub place: RowPlace,
    /// Rows.
    pub n_rows: usize,
    /// Channels of a row.
    pub width: usize,
    /// Bytes in the file.
    pub n_bytes: u64,
    /// Multiplies the rows (`NAME.scale` of scaled formats); 1 otherwise.
    pub scale: f32,
}

/// Where a matrix of rows is.
#[derive(Clone, Debug)]
pub enum RowPlace {
    /// In device memory.
    Device(WeightId),
    /// In the file.
    File(FileRows),
}

#[derive(Clone, Debug)]
enum Request {
    /// Matrices of one type and width in that type, the rows of each after those of the one before.
    Matrix(Vec<TensorInfo>),
    /// Stacks of matrices, one an expert, of one type and width; for each expert the rows of all stacks in turn.
    Experts(Vec<TensorInfo>),
    /// Vectors converted to f32, one after the other.
    Vectors(Vec<TensorInfo>),
}

impl Request {
    fn infos(&self) -> &[TensorInfo] {
        match self {
            Self::Matrix(infos) | Self::Experts(infos) | Self::Vectors(infos) => infos,
        }
    }

    /// The rows of its matrices in the order in which they lie on a device.
    fn segments(&self) -> Vec<Segment<'_>> {
        let infos = self.infos();
        match self {
            Self::Matrix(_) | Self::Vectors(_) => infos.iter().map(Segment::all).collect(),
            Self::Experts(infos) if infos.len() == 1 => vec![Segment::all(&infos[0])],
            Self::Experts(infos) => (0..infos[0].shape[0])
                .flat_map(|e| infos.iter().map(move |info| Segment::expert(info, e)))
                .collect(),
        }
    }

    /// The names of its tensors.
    fn name(&self) -> String {
        let names: Vec<&str> = self.infos().iter().map(|info| info.name.as_str()).collect();
        names.join("+")
    }

    /// Bytes in the file.
    fn file_bytes(&self) -> u64 {
        self.infos().iter().map(|info| info.n_bytes as u64).sum()
    }
}

/// Neighbouring rows of a tensor of the file.
#[derive(Clone, Copy, Debug)]
struct Segment<'a> {
    info: &'a TensorInfo,
    first: usize,
    n_rows: usize,
}

impl<'a> Segment<'a> {
    /// All rows.
    fn all(info: &'a TensorInfo) -> Self {
        Self {
            info,
            first: 0,
            n_rows: n_rows(info),
        }
    }

    /// The rows of an expert.
    fn expert(info: &'a TensorInfo, expert: usize) -> Self {
        Self {
            info,
            first: expert * info.shape[1],
            n_rows: info.shape[1],
        }
    }
}

/// Rows of a tensor, over all its outer axes.
fn n_rows(info: &TensorInfo) -> usize {
    let outer = info.shape.len().saturating_sub(1);
    info.shape[..outer].iter().product()
}

/// The tensors that a model needs from a file.
#[derive(Debug)]
pub struct Requests<'a> {
    file: &'a GgufFile,
    arch: String,
    list: Vec<Request>,
    by_name: BTreeMap<String, WeightId>,
    leave_tables: bool,
}

impl<'a> Requests<'a> {
    /// No requests yet.
    pub fn new(file: &'a GgufFile, arch: &str) -> Self {
        Self {
            file,
            arch: arch.to_owned(),
            list: Vec::new(),
            by_name: BTreeMap::new(),
            leave_tables: false,
        }
    }

    /// Has [`row_table`](Self::row_table) leave tables in the file.
    pub fn leave_tables_in_file(&mut self) {
        self.leave_tables = true;
    }

    /// Whether the file has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.gguf().tensor(name).is_some()
    }

    /// The shape of a tensor, if the file has it.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file
            .gguf()
            .tensor(name)
            .map(|info| info.shape.as_slice())
    }

    /// The file's tensor of this name, if its shape and type fit.
    fn find(
        &self,
        name: &str,
        shape: &[usize],
        usable: impl Fn(DType) -> bool,
    ) -> Result<TensorInfo, WeightError> {
        let info = self
            .file
            .gguf()
            .tensor(name)
            .ok_or_else(|| WeightError::Missing {
                name: name.to_owned(),
                arch: self.arch.clone(),
            })?;
        if info.shape != shape {
            return Err(WeightError::Shape {
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            });
        }
        if !usable(info.dtype) {
            return Err(WeightError::Type {
                name: name.to_owned(),
                dtype: info.dtype,
            });
        }
        Ok(info.clone())
    }

    /// Adds a request, unless there is one of this name.
    fn push(&mut self, request: Request) -> WeightId {
        let next = WeightId(self.list.len());
        let id = *self.by_name.entry(request.name()).or_insert(next);
        if id == next {
            self.list.push(request);
        }
        id
    }

    /// A matrix `[d_out, d_in]` named `LABEL.weight`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn matrix(
        &mut self,
        label: &str,
        d_out: usize,
        d_in: usize,
    ) -> Result<WeightId, WeightError> {
        let info = self.find(&format!("{label}.weight"), &[d_out, d_in], is_weight)?;
        Ok(self.push(Request::Matrix(vec![info])))
    }

    /// A matrix named `LABEL.weight` of at least `n_rows` rows, of which a step reads a few; with its optional
    /// `LABEL.scale`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn row_table(
        &mut self,
        label: &str,
        n_rows: usize,
        width: usize,
    ) -> Result<RowTable, WeightError> {
        let name = format!("{label}.weight");
        let found = self.shape(&name).and_then(|shape| shape.first().copied());
        let n_rows = n_rows.max(found.unwrap_or_default());
        let info = self.find(&name, &[n_rows, width], is_weight)?;
        Ok(RowTable {
            n_bytes: info.n_bytes as u64,
            place: if self.leave_tables {
                RowPlace::File(self.file.rows(&info))
            } else {
                RowPlace::Device(self.push(Request::Matrix(vec![info])))
            },
            n_rows,
            width,
            scale: self.scalar(&format!("{label}.scale"))?.unwrap_or(1.0),
        })
    }

    /// A vector of `n` named `LABEL.weight` as a matrix of one row, for the product with it.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn row(&mut self, label: &str, n: usize) -> Result<WeightId, WeightError> {
        let mut info = self.find(&format!("{label}.weight"), &[n], is_weight)?;
        info.shape = vec![1, n];
        Ok(self.push(Request::Matrix(vec![info])))
    }

    /// A vector of `n` named `LABEL.weight`, as f32.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn vector(&mut self, label: &str, n: usize) -> Result<WeightId, WeightError> {
        let info = self.find(&format!("{label}.weight"), &[n], DType::is_float)?;
        Ok(self.push(Request::Vectors(vec![info])))
    }

    /// A vector of `n` with this full name, if the file has it.
    ///
    /// # Errors
    /// Of another shape or type.
    pub fn opt_vector(&mut self, name: &str, n: usize) -> Result<Option<WeightId>, WeightError> {
        self.opt_joined(&[(name, n)])
    }

    /// A tensor of plain numbers with this full name and shape, as one f32 vector of all its elements.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn table(&mut self, name: &str, shape: &[usize]) -> Result<WeightId, WeightError> {
        let info = self.find(name, shape, DType::is_float)?;
        Ok(self.push(Request::Vectors(vec![info])))
    }

    /// The number of tensors of the file whose names begin so.
    pub fn count(&self, prefix: &str) -> usize {
        let tensors = self.file.gguf().tensors().iter();
        tensors.filter(|info| info.name.starts_with(prefix)).count()
    }

    /// A matrix product `LABEL.weight` with its rows in another order: runs of (first, number), each but the last of
    /// whole tiles.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn reordered(
        &mut self,
        label: &str,
        rows: &[(usize, usize)],
        d_out: usize,
        d_in: usize,
    ) -> Result<Linear, WeightError> {
        let usable = |dtype| dtype::WEIGHT_TYPES.contains(&dtype);
        let info = self.find(&format!("{label}.weight"), &[d_out, d_in], usable)?;
        let row_bytes = info.n_bytes / d_out.max(1);
        let parts = rows.iter().map(|&(first, n)| TensorInfo {
            shape: vec![n, d_in],
            offset: info.offset + (first * row_bytes) as u64,
            n_bytes: n * row_bytes,
            ..info.clone()
        });
        let scale = self.scalar(&format!("{label}.scale"))?.unwrap_or(1.0);
        Ok(Linear {
            label: label.to_owned(),
            weight: self.push(Request::Matrix(parts.collect())),
            bias: None,
            scale,
        })
    }

    /// Vectors with these full names and lengths as one vector, if the file has the first.
    ///
    /// # Errors
    /// Another one is missing; of another shape or type.
    pub fn opt_joined(&mut self, parts: &[(&str, usize)]) -> Result<Option<WeightId>, WeightError> {
        if parts.first().is_none_or(|(name, _)| !self.has(name)) {
            return Ok(None);
        }
        let infos = parts
            .iter()
            .map(|&(name, n)| self.find(name, &[n], DType::is_float))
            .collect::<Result<_, _>>()?;
        Ok(Some(self.push(Request::Vectors(infos))))
    }

    /// A matrix product `LABEL.weight` with its optional `LABEL.bias` and `LABEL.scale`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn linear(
        &mut self,
        label: &str,
        d_out: usize,
        d_in: usize,
    ) -> Result<Linear, WeightError> {
        let weight = self.matrix(label, d_out, d_in)?;
        let bias = self.opt_vector(&format!("{label}.bias"), d_out)?;
        let scale = self.scalar(&format!("{label}.scale"))?.unwrap_or(1.0);
        Ok(Linear {
            label: label.to_owned(),
            weight,
            bias,
            scale,
        })
    }

    /// Products with the same input as one: the rows of all parts `(label, d_out)` in one matrix.
    ///
    /// `None` where that cannot be: parts of different types or scales, biases of some parts only, or a tile that rows
    /// of two parts would share.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn opt_stacked(
        &mut self,
        label: &str,
        parts: &[(&str, usize)],
        d_in: usize,
    ) -> Result<Option<Linear>, WeightError> {
        let infos = parts
            .iter()
            .map(|(part, d_out)| self.find(&format!("{part}.weight"), &[*d_out, d_in], is_weight))
            .collect::<Result<Vec<_>, _>>()?;
        let scales = parts
            .iter()
            .map(|(part, _)| {
                Ok(self
                    .scalar(&format!("{part}.scale"))?
                    .unwrap_or(1.0)
                    .to_bits())
            })
            .collect::<Result<Vec<_>, WeightError>>()?;
        let biases: Vec<String> = parts
            .iter()
            .map(|(part, _)| format!("{part}.bias"))
            .collect();
        let n_biases = biases.iter().filter(|bias| self.has(bias)).count();
        let alike = infos.iter().all(|info| info.dtype == infos[0].dtype)
            && scales.iter().all(|&scale| scale == scales[0])
            && (n_biases == 0 || n_biases == parts.len())
            && parts[..parts.len().saturating_sub(1)]
                .iter()
                .all(|(_, d_out)| d_out.is_multiple_of(TILE_ROWS));
        if !alike {
            return Ok(None);
        }
        let vectors: Vec<(&str, usize)> = biases
            .iter()
            .zip(parts)
            .map(|(bias, (_, d_out))| (bias.as_str(), *d_out))
            .collect();
        Ok(Some(Linear {
            label: label.to_owned(),
            bias: self.opt_joined(&vectors)?,
            scale: f32::from_bits(scales[0]),
            weight: self.push(Request::Matrix(infos)),
        }))
    }

    /// A stack of matrices `[n_experts, d_out, d_in]` named `LABEL.weight` with its optional `LABEL.scale`
    /// (`[n_experts]`) and `LABEL.bias` (`[n_experts, d_out]`).
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn experts(
        &mut self,
        label: &str,
        [n_experts, d_out, d_in]: [usize; 3],
    ) -> Result<ExpertStack, WeightError> {
        let info = self.find(
            &format!("{label}.weight"),
            &[n_experts, d_out, d_in],
            is_weight,
        )?;
        let bias = format!("{label}.bias");
        let bias = if self.has(&bias) {
            let info = self.find(&bias, &[n_experts, d_out], DType::is_float)?;
            Some(self.push(Request::Vectors(vec![info])))
        } else {
            None
        };
        Ok(ExpertStack {
            label: label.to_owned(),
            weight: self.push(Request::Experts(vec![info])),
            scale: self.opt_vector(&format!("{label}.scale"), n_experts)?,
            bias,
        })
    }

    /// Two stacks with the same input as one `[n_experts, 2 * d_out, d_in]`: for each expert the rows of the first, then
    /// those of the second.
    ///
    /// `None` where that cannot be: different types, a scale of one only, biases, or rows that would straddle a tile.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn opt_stacked_experts(
        &mut self,
        label: &str,
        parts: [&str; 2],
        shape: [usize; 3],
    ) -> Result<Option<ExpertStack>, WeightError> {
        let [n_experts, d_out, _] = shape;
        let infos = parts
            .iter()
            .map(|part| self.find(&format!("{part}.weight"), &shape, is_weight))
            .collect::<Result<Vec<_>, _>>()?;
        let scales = parts.map(|part| format!("{part}.scale"));
        let n_scales = scales.iter().filter(|scale| self.has(scale)).count();
        let alike = infos[0].dtype == infos[1].dtype
            && n_scales != 1
            && !parts.iter().any(|part| self.has(&format!("{part}.bias")))
            && d_out.is_multiple_of(TILE_ROWS);
        if !alike {
            return Ok(None);
        }
        let vectors = scales.each_ref().map(|scale| (scale.as_str(), n_experts));
        Ok(Some(ExpertStack {
            label: label.to_owned(),
            scale: self.opt_joined(&vectors)?,
            bias: None,
            weight: self.push(Request::Experts(infos)),
        }))
    }

    /// The single value of a tensor, if the file has it.
    ///
    /// # Errors
    /// Of another shape or type.
    pub fn scalar(&self, name: &str) -> Result<Option<f32>, WeightError> {
        match self.floats(name, 1)? {
            Some(values) => Ok(values.first().copied()),
            None => Ok(None),
        }
    }

    /// The values of a small tensor that the host needs (rope factors), if the file has it.
    ///
    /// # Errors
    /// Of another shape or type.
    pub fn floats(&self, name: &str, n: usize) -> Result<Option<Vec<f32>>, WeightError> {
        let Some(info) = self.file.gguf().tensor(name) else {
            return Ok(None);
        };
        if info.n_elems() != n {
            return Err(WeightError::Shape {
                name: name.to_owned(),
                expected: vec![n],
                found: info.shape.clone(),
            });
        }
        if !info.dtype.is_float() {
            return Err(WeightError::Type {
                name: name.to_owned(),
                dtype: info.dtype,
            });
        }
        let mut values = vec![0.0; n];
        format::decode_row(info.dtype, &self.file.bytes(info), &mut values);
        Ok(Some(values))
    }

    /// Bytes that the requested tensors take on a device.
    pub fn n_bytes(&self, caps: &Caps) -> u64 {
        self.list
            .iter()
            .map(|request| desc_of(request, caps).n_bytes() as u64)
            .sum()
    }

    /// Name, type and shape of each requested matrix and stack of matrices of the file, in request order.
    pub fn matrices(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        let matrices = self.list.iter().filter_map(|request| match request {
            Request::Matrix(infos) | Request::Experts(infos) => Some(infos),
            Request::Vectors(_) => None,
        });
        matrices
            .flatten()
            .map(|info| (info.name.as_str(), info.dtype, info.shape.as_slice()))
    }

    /// Uploads every requested tensor. `progress` is called with the bytes of the file done so far and in all.
    ///
    /// # Errors
    /// Out of device memory, device lost, file changed underneath.
    pub fn upload(
        self,
        device: &dyn Device,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights, WeightError> {
        let total = self.list.iter().map(Request::file_bytes).sum();
        let mut done = 0;
        let mut tensors = Vec::with_capacity(self.list.len());
        for request in &self.list {
            self.file.check_unchanged()?;
            let tensor = upload(self.file, request, device, &mut |bytes| {
                done += bytes;
                progress(done, total);
            })
            .map_err(|source| WeightError::Device {
                name: request.name(),
                source,
            })?;
            tensors.push(tensor);
        }
        Ok(Weights { tensors })
    }
}

/// Whether matrices may have this type.
fn is_weight(dtype: DType) -> bool {
    dtype::WEIGHT_TYPES.contains(&dtype)
}

impl Requests<'_> {
    /// Allocates every requested tensor and fills none: for making plans of a model, not for running it.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn reserve(self, device: &dyn Device) -> Result<Weights, WeightError> {
        let reserve = |request: &Request| -> Result<Tensor, DeviceError> {
            let desc = desc_of(request, device.caps());
            let sizes: Vec<usize> = match desc.layout {
                Layout::Tile8 => (desc.windows().into_iter())
                    .map(|(_, n_rows)| desc.tiles(n_rows).packed_bytes())
                    .collect(),
                _ => vec![desc.n_bytes()],
            };
            let buffers = (sizes.into_iter())
                .map(|n_bytes| device.alloc(n_bytes as u64, &request.name()))
                .collect::<Result<_, _>>()?;
            Ok(Tensor { desc, buffers })
        };
        let tensors = (self.list.iter())
            .map(|request| {
                reserve(request).map_err(|source| WeightError::Device {
                    name: request.name(),
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Weights { tensors })
    }
}

/// Description of a requested tensor on a device.
fn desc_of(request: &Request, caps: &Caps) -> TensorDesc {
    let infos = request.infos();
    let shape = match request {
        Request::Vectors(_) => {
            return TensorDesc::f32([infos.iter().map(TensorInfo::n_elems).sum::<usize>()]);
        }
        Request::Matrix(_) => vec![infos.iter().map(n_rows).sum(), infos[0].shape[1]],
        Request::Experts(_) => {
            let d_out = infos.iter().map(|info| info.shape[1]).sum();
            vec![infos[0].shape[0], d_out, infos[0].shape[2]]
        }
    };
    let dtype = infos[0].dtype;
    if caps.class == DeviceClass::Reference {
        return TensorDesc::new(dtype, shape);
    }
    let mut desc = TensorDesc::weight(dtype, shape, Layout::Tile8);
    let group = desc.tiles(TILE_ROWS).packed_bytes().max(1);
    let limit = caps.max_binding_bytes.min(caps.max_buffer_bytes);
    let groups = (limit / group as u64).max(1) as usize;
    if groups * TILE_ROWS < desc.rows() {
        desc.window_rows = groups * TILE_ROWS;
        // Windows of whole experts where experts are whole tiles: what multiplies both halves of an expert at once
        // finds them in one window.
        if let Request::Experts(_) = request
            && desc.shape[1].is_multiple_of(TILE_ROWS)
            && desc.window_rows >= desc.shape[1]
        {
            desc.window_rows -= desc.window_rows % desc.shape[1];
        }
    }
    desc
}

/// Streams a requested tensor to the device, reporting the bytes of the file as they are done.
fn upload(
    file: &GgufFile,
    request: &Request,
    device: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<Tensor, DeviceError> {
    let desc = desc_of(request, device.caps());
    let buffers = match (request, desc.layout) {
        (Request::Vectors(infos), _) => vec![upload_vectors(file, infos, device, progress)?],
        (Request::Matrix(_) | Request::Experts(_), Layout::Tile8) => {
            upload_tiles(file, &request.segments(), &desc, device, progress)?
        }
        (Request::Matrix(_) | Request::Experts(_), _) => {
            vec![upload_rows(file, request, device, progress)?]
        }
    };
    Ok(Tensor { desc, buffers })
}

fn upload_vectors(
    file: &GgufFile,
    infos: &[TensorInfo],
    device: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<Buffer, DeviceError> {
    let mut values = Vec::new();
    for info in infos {
        let start = values.len();
        values.resize(start + info.n_elems(), 0.0f32);
        format::decode_row(info.dtype, &file.bytes(info), &mut values[start..]);
        progress(info.n_bytes as u64);
    }
    let label = infos.first().map_or("", |info| &info.name);
    let buffer = device.alloc((values.len() * 4) as u64, label)?;
    device.write(&buffer, 0, bytemuck::cast_slice(&values))?;
    Ok(buffer)
}

/// Matrices in rows as in the file, for the reference.
fn upload_rows(
    file: &GgufFile,
    request: &Request,
    device: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<Buffer, DeviceError> {
    let buffer = device.alloc(request.file_bytes(), &request.infos()[0].name)?;
    let mut offset = 0;
    let mut scratch = Vec::new();
    for Segment {
        info,
        first,
        n_rows: rows,
    } in request.segments()
    {
        let row_bytes = info.n_bytes / n_rows(info).max(1);
        let (from, to) = (first * row_bytes, (first + rows) * row_bytes);
        for start in (from..to).step_by(PIECE_BYTES) {
            let range = start..(start + PIECE_BYTES).min(to);
            let bytes = file.piece(info, range.clone(), &mut scratch);
            device.write(&buffer, offset, bytes)?;
            offset += range.len() as u64;
            file.release(info, range.clone());
            progress(range.len() as u64);
        }
    }
    Ok(buffer)
}

/// Matrices in tiles, one buffer a window.
fn upload_tiles(
    file: &GgufFile,
    segments: &[Segment<'_>],
    desc: &TensorDesc,
    device: &dyn Device,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Buffer>, DeviceError> {
    let name = &segments[0].info.name;
    let row_bytes = desc.tiles(TILE_ROWS).row_bytes();
    let group_bytes = desc.tiles(TILE_ROWS).group_bytes();
    let piece_rows = (PIECE_BYTES / group_bytes.max(1)).max(1) * TILE_ROWS;
    let mut buffers = Vec::new();
    let (mut packed, mut scratch) = (Vec::new(), Vec::new());
    for (first, n_rows) in desc.windows() {
        let tiles = desc.tiles(n_rows);
        let buffer = device.alloc(tiles.packed_bytes() as u64, name)?;
        let mut offset = 0;
        // The rows of the window, segment by segment. All but the last segment are whole tiles.
        let mut segment_first = 0;
        for segment in segments {
            let from = first.max(segment_first);
            let to = (first + n_rows).min(segment_first + segment.n_rows);
            for piece in (from..to.max(from)).step_by(piece_rows) {
                let rows = piece_rows.min(to - piece);
                let start = (segment.first + piece - segment_first) * row_bytes;
                let range = start..start + rows * row_bytes;
                packed.resize(rows.div_ceil(TILE_ROWS) * group_bytes, 0);
                // One core packs 1 to 2 GB/s, several times less than a device takes in.
                file.piece(segment.info, range.clone(), &mut scratch)
                    .par_chunks(TILE_ROWS * row_bytes)
                    .zip(packed.par_chunks_mut(group_bytes))
                    .for_each(|(rows, group)| tiles.pack_rows(rows, group));
                device.write(&buffer, offset, &packed)?;
                offset += packed.len() as u64;
                file.release(segment.info, range.clone());
                progress(range.len() as u64);
            }
            segment_first += segment.n_rows;
        }
        buffers.push(buffer);
    }
    Ok(buffers)
}

/// The tensors of a model in device memory.
#[derive(Debug, Default)]
pub struct Weights {
    tensors: Vec<Tensor>,
}

impl Weights {
    /// The tensor of a request.
    pub fn tensor(&self, id: WeightId) -> &Tensor {
        &self.tensors[id.0]
    }
}
