//! What an op is: one name, a shape rule, a parameter block, launches, a cost, a tolerance and a sharding rule.
//!
//! A definition in `ops/NAME.rs` implements [`Op`]. Its reference is `reference/NAME.rs`, its shader
//! `shaders/NAME.wgsl`, its kernel `kernels/NAME.cu`, its cases `conformance/src/cases/NAME.rs`.
//!
//! GPU words: a *block* is WGSL's workgroup, a *warp* its subgroup, a *thread* its invocation.

use std::borrow::Cow;
use std::fmt;

use crate::error::{OpError, bad_operand};
use crate::reference::RefArgs;
use crate::tensor::TensorDesc;

/// The descriptors of an op's operands, in binding order.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Read only.
    pub inputs: &'a [&'a TensorDesc],
    /// Read and updated in place: caches, tables.
    pub inouts: &'a [&'a TensorDesc],
    /// Written completely.
    pub outputs: &'a [&'a TensorDesc],
}

/// One op of the set, with its attributes.
pub trait Op: fmt::Debug + fmt::Display + Send + Sync {
    /// The name shared by definition, reference, shader, kernel and cases.
    fn name(&self) -> &'static str;

    /// The shape rule: what the outputs are for these inputs and in-place operands.
    ///
    /// # Errors
    /// Names the operand that does not fit, what was expected and what was found.
    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError>;

    /// The launches that compute the op on a device with these capabilities.
    ///
    /// # Errors
    /// If no launch fits the device's limits.
    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError>;

    /// Bytes that must move and arithmetic that must happen, whatever the implementation.
    fn cost(&self, operands: Operands<'_>) -> Cost;

    /// How far a result may be from the reference.
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance;

    /// How the op behaves when its operands are split over devices.
    fn sharding(&self) -> Sharding;

    /// What bounds the op's arithmetic at best.
    fn roof(&self) -> Roof {
        Roof::Vector
    }

    /// Whether a model spends much of its time in this op: its kernels must keep everything that a thread owns in
    /// registers. What matrix units can do is.
    fn is_hot(&self) -> bool {
        self.roof() != Roof::Vector
    }

    /// Computes the op in plain loops with f64 accumulation.
    fn reference(&self, args: &mut RefArgs<'_>);

    /// For a definition that is a sequence of others: itself, so that passes can recognise it.
    ///
    /// Passes such as `fuse` match on attributes through this.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// What a device can do, as far as definitions care.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// What kind of device it is: tile sizes and split counts are chosen by class.
    pub class: DeviceClass,
    /// Largest binding, in bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Alignment of a binding's offset, in bytes.
    pub binding_alignment: u64,
    /// Blocks along each axis of a grid.
    pub max_blocks_per_axis: u32,
    /// Threads in a block.
    pub max_threads_per_block: u32,
    /// Shared memory of a block, in bytes.
    pub max_shared_bytes: u32,
    /// Storage bindings of one launch.
    pub max_bindings: u32,
    /// Native 16-bit floats in kernels.
    pub f16: bool,
    /// Threads per warp, if warp-wide operations can be used.
    pub warp: Option<u32>,
    /// Warps of 32 multiply 16 x 16 by 16 x 8 matrices of f16 or bf16 and sum in f32, and 16 x 32 by 32 x 8 of bytes.
    pub tensor_cores: bool,
    /// They take bf16 at the rate of f16; else its products are slow.
    pub bf16_tensor_cores: bool,
    /// Device memory that may be used, in bytes.
    pub memory_bytes: u64,
}

/// The kinds of device whose good launch geometry differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceClass {
    /// The f64 reference; it executes definitions, not launches.
    Reference,
    /// A GPU interface rendered by the CPU: few wide threads, dear barriers, loads count.
    Software,
    /// A GPU that shares memory with the CPU.
    Integrated,
    /// A GPU with its own memory.
    Discrete,
}

impl DeviceClass {
    /// The lower-case word used in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Software => "software",
            Self::Integrated => "integrated",
            Self::Discrete => "discrete",
        }
    }
}

/// A value of the parameter block: 32 bits in all languages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// Unsigned.
    U32(u32),
    /// Signed.
    I32(i32),
    /// Single precision.
    F32(f32),
}

impl Param {
    /// The bits as stored in the block.
    pub fn bits(self) -> u32 {
        match self {
            Self::U32(v) => v,
            Self::I32(v) => v.cast_unsigned(),
            Self::F32(v) => v.to_bits(),
        }
    }

    /// `u32`, `i32` or `f32`: the same word in Rust and WGSL.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
        }
    }
}

/// The parameter block of a launch: named 32-bit values in order.
///
/// Names and order are a property of the entry point and end up in the generated `struct Params`; the values are
/// uploaded when a plan is recorded. It is the only description of the block: the loaders of both GPU languages
/// spell it out from here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(Vec<(Cow<'static, str>, Param)>);

impl Params {
    /// An empty block.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an unsigned value.
    ///
    /// # Panics
    /// If a size does not fit 32 bits: definitions check their limits first.
    #[must_use]
    pub fn u32(mut self, name: impl Into<Cow<'static, str>>, value: usize) -> Self {
        let value = u32::try_from(value).expect("launch sizes fit 32 bits");
        self.0.push((name.into(), Param::U32(value)));
        self
    }

    /// Appends a signed value.
    #[must_use]
    pub fn i32(mut self, name: impl Into<Cow<'static, str>>, value: i32) -> Self {
        self.0.push((name.into(), Param::I32(value)));
        self
    }

    /// Appends a float.
    #[must_use]
    pub fn f32(mut self, name: impl Into<Cow<'static, str>>, value: f32) -> Self {
        self.0.push((name.into(), Param::F32(value)));
        self
    }

    /// Appends how to find a row of an operand: `NAME_n1`, `NAME_s0`, `NAME_s1`, `NAME_off`, in elements.
    ///
    /// Row `r` over all outer axes starts at `off + (r / n1) * s0 + (r % n1) * s1` (`row_offset` in
    /// `shaders/lib/rows.wgsl`). Two strides describe every operand of rank 3 or less, and contiguous ones of any rank.
    ///
    /// # Errors
    /// A strided operand of higher rank.
    pub fn rows(
        self,
        op: &'static str,
        name: &'static str,
        desc: &TensorDesc,
    ) -> Result<Self, OpError> {
        let (n1, s0, s1) = match desc.row_stride() {
            Some(stride) => (1, stride, 0),
            None if desc.rank() == 3 => (desc.shape[1], desc.strides[0], desc.strides[1]),
            None => {
                return Err(bad_operand(
                    op,
                    name,
                    "strided along two outer axes at most",
                    desc,
                ));
            }
        };
        Ok(self
            .u32(format!("{name}_n1"), n1)
            .u32(format!("{name}_s0"), s0)
            .u32(format!("{name}_s1"), s1)
            .u32(format!("{name}_off"), desc.offset))
    }

    /// Appends the values of another block.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// The values with their names, in order.
    pub fn fields(&self) -> &[(Cow<'static, str>, Param)] {
        &self.0
    }

    /// The block as it is uploaded: little-endian words, padded to 16 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self
            .0
            .iter()
            .flat_map(|(_, v)| v.bits().to_le_bytes())
            .collect();
        bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
        bytes
    }
}

/// A compile-time constant of a specialisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Const {
    /// A number.
    U32(u32),
    /// A switch.
    Bool(bool),
}

/// What turns a source text into a kernel for these shapes and types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Constants by name. Every entry has `THREADS`, the threads of a block.
    pub consts: Vec<(&'static str, Const)>,
    /// Library pieces chosen by type: `(prefix, library file)`, e.g. `("w", "tile_q4_k")`.
    pub imports: Vec<(&'static str, String)>,
}

impl Spec {
    /// A specialisation with this many threads per block.
    pub fn threads(n: u32) -> Self {
        Self {
            consts: vec![("THREADS", Const::U32(n))],
            imports: Vec::new(),
        }
    }

    /// Adds a number.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: u32) -> Self {
        self.consts.push((name, Const::U32(value)));
        self
    }

    /// Adds a switch.
    #[must_use]
    pub fn flag(mut self, name: &'static str, value: bool) -> Self {
        self.consts.push((name, Const::Bool(value)));
        self
    }

    /// Imports the library piece `file` under a prefix.
    #[must_use]
    pub fn import(mut self, prefix: &'static str, file: impl Into<String>) -> Self {
        self.imports.push((prefix, file.into()));
        self
    }
}

/// A constant table of words that a kernel reads from a binding of its own (codebooks).
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Unique name: backends upload each table once.
    pub name: &'static str,
    /// The words.
    pub words: &'static [u32],
}

/// What one binding of a launch refers to.
#[derive(Clone, Copy, Debug)]
pub enum Binding {
    /// Input `n`, from its first to its last element.
    Input(usize),
    /// A window of input `n` (a weight larger than the device binds at once), by window index.
    InputWindow(usize, usize),
    /// In-place operand `n`.
    Inout(usize),
    /// Output `n`.
    Output(usize),
    /// Scratch area `n`.
    Scratch(usize),
    /// A constant table.
    Table(Table),
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Entry point in the op's source file.
    pub entry: &'static str,
    /// Specialisation.
    pub spec: Spec,
    /// Parameter block.
    pub params: Params,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Bindings in the entry's order; the parameter block follows them.
    pub bindings: Vec<Binding>,
}

/// All launches of an op, in order, and the scratch they share.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    /// Sizes in bytes of the scratch areas.
    pub scratch: Vec<usize>,
    /// The launches.
    pub list: Vec<Launch>,
}

impl Launches {
    /// A single launch without scratch.
    pub fn one(launch: Launch) -> Self {
        Self {
            scratch: Vec::new(),
            list: vec![launch],
        }
    }
}

/// Folds `n` blocks of a one-dimensional grid into x and y, so that no axis exceeds the device's limit.
///
/// Kernels compute the index as `block.y * grid.x + block.x` and leave when it is `n` or more.
///
/// # Errors
/// If even two axes are too few.
pub fn fold_grid(n: usize, caps: &Caps) -> Result<[u32; 3], OpError> {
    let max = caps.max_blocks_per_axis as usize;
    if n <= max {
        return Ok([n.max(1) as u32, 1, 1]);
    }
    let y = n.div_ceil(max);
    if y > max {
        return Err(OpError::Limit {
            what: "blocks of the grid",
            needed: n as u64,
            limit: (max * max) as u64,
        });
    }
    Ok([n.div_ceil(y) as u32, y as u32, 1])
}

/// Unavoidable work of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes read and written at least once.
    pub bytes: u64,
    /// Floating-point operations; a multiply-add is two.
    pub flops: u64,
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            flops: self.flops + other.flops,
        }
    }
}

/// The fastest units of a device that can do an op's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roof {
    /// f32 multiply-adds, a thread on its own.
    Vector,
    /// Products of matrices of 16-bit floats.
    Matrix,
    /// Products of matrices of bytes.
    ByteMatrix,
}

/// How far a device may be from the reference.
///
/// Every element: `|z - y| <= tau * m + alpha`, where `m` is the magnitude that the reference returns (the same
/// expression with absolute values). Every row of 32 elements or more: the squared error over the squared
/// reference is at most `nmse`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Factor of the magnitude.
    pub tau: f64,
    /// Absolute part.
    pub alpha: f64,
    /// Limit on the normalised mean squared error of a row.
    pub nmse: f64,
}

impl Tolerance {
    /// Bit-equal results: copies, selections, integers.
    pub const EXACT: Self = Self {
        tau: 0.0,
        alpha: 0.0,
        nmse: 0.0,
    };

    /// Unit roundoff of f32.
    pub const U: f64 = 1.0 / 16_777_216.0;

    /// `tau` in units of f32 roundoff; `alpha` covers flushed subnormals of `n_terms` terms.
    pub fn units(tau_units: f64, n_terms: usize, nmse: f64) -> Self {
        Self {
            tau: tau_units * Self::U,
            alpha: n_terms as f64 * f64::from(f32::MIN_POSITIVE),
            nmse,
        }
    }
}

/// How an op behaves when its operands are split over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Works on any split of the rows or of the last axis, each device on its part.
    Elementwise,
    /// Needs whole rows; tokens may be split.
    Rows,
    /// A matrix product: split on `d_out` gives a split output, split on `d_in` gives partial sums.
    Matmul,
    /// Heads may be split, queries together with the KV head they read.
    Heads,
    /// Every device does all of it.
    Mirrored,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(max: u32) -> Caps {
        Caps {
            max_blocks_per_axis: max,
            ..crate::device::reference_caps()
        }
    }

    #[test]
    fn grids_fold_above_the_limit() {
        assert_eq!(fold_grid(0, &caps(8)).unwrap(), [1, 1, 1], "never empty");
        assert_eq!(fold_grid(8, &caps(8)).unwrap(), [8, 1, 1], "fits");
        let [x, y, _] = fold_grid(9, &caps(8)).unwrap();
        assert!(x * y >= 9 && x <= 8 && y <= 8, "covers: {x} x {y}");
        assert!(fold_grid(65, &caps(8)).is_err(), "does not fit two axes");
    }

    #[test]
    fn params_are_padded_to_16_bytes() {
        let params = Params::new().u32("n", 3).f32("eps", 1.0).i32("k", -1);
        assert_eq!(params.bytes().len(), 16, "three words padded");
        assert_eq!(params.bytes()[8..12], (-1i32).to_le_bytes(), "in order");
    }
}
