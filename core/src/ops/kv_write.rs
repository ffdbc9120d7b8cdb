//! `kv_write`: encodes the keys or values of a step into their cells of a paged cache.
//!
//! `cache[slot / PAGE, h, slot % PAGE, ..] = encode(x[t, h, ..])` with `slot = slots[t]`
//!
//! # Shapes
//! `x`: f32 `[n_tokens, n_kv_heads, head_dim]`, the last axis contiguous; `slots`: i32 `[n_tokens]`;
//! `cache`: pages `[n_pages, n_kv_heads, PAGE, head_dim]` of one of the cache types.
//! # Numerics
//! The encoders of [`crate::format`]: NaN becomes 0, infinities and scales saturate, so that a cache never holds
//! anything non-finite. Kernels give the same codes; a scale may differ by one f16 ulp where the device divides
//! less exactly than IEEE 754 asks.
//! # Edge cases
//! A slot of -1 or outside the cache is skipped. Slots of one step are distinct. Every byte of other cells stays.
//! A head size that is not a whole number of blocks is padded with zeros.
//! # Source
//! `core/src/format/cache_row.rs` for the layout.

use std::fmt;

use super::{expect_f32, take};
use crate::PAGE;
use crate::dtype::{CACHE_TYPES, DType};
use crate::error::{OpError, bad_operand};
use crate::format::cache_row::CacheRow;
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// Threads of a block. A multiple of 16, so that two neighbouring cache blocks, whose scales share a word, are
/// encoded together.
pub(super) const THREADS: u32 = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct KvWrite;

impl KvWrite {
    /// The one name.
    pub const NAME: &str = "kv_write";
}

impl fmt::Display for KvWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for KvWrite {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, slots] = take(Self::NAME, inputs)?;
        let [cache] = take(Self::NAME, inouts)?;
        expect_f32(Self::NAME, "x", x)?;
        expect_pages(Self::NAME, "cache", cache)?;
        if x.rank() != 3 || x.shape[1..] != [cache.shape[1], cache.last()] {
            let expected = format!("[n_tokens, {}, {}]", cache.shape[1], cache.last());
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        expect_indices(Self::NAME, "slots", slots, x.shape[0])?;
        Ok(Vec::new())
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, slots] = take(Self::NAME, operands.inputs)?;
        let [cache] = take(Self::NAME, operands.inouts)?;
        let cells = Cells::new(x, cache)?;
        Ok(Launches::one(Launch {
            entry: if cache.dtype.is_block() {
                "kv_write_blocks"
            } else {
                Self::NAME
            },
            spec: encoder(Spec::threads(THREADS), cache.dtype),
            params: Params::new()
                .u32("n_items", cells.n_items)
                .u32("items", cells.items)
                .u32("n_heads", x.shape[1])
                .u32("head_dim", x.last())
                .u32("n_cells", cache.shape[0] * PAGE)
                .u32("row_words", cells.row.n_words())
                .u32("narrow", cells.row.narrow_words())
                .u32("slots_off", slots.offset)
                .rows(Self::NAME, "x", x)?,
            grid: fold_grid(cells.n_blocks(), caps)?,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Inout(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        let row = CacheRow::new(operands.inouts[0].dtype, x.last());
        let n_elems = x.n_elems() as u64;
        Cost {
            bytes: 4 * n_elems + (x.rows() * row.n_words() * 4 + x.shape[0] * 4) as u64,
            flops: 3 * n_elems,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::kv_write::kv_write(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// How the threads of an encoder share the rows of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    /// Layout of a cell.
    pub(super) row: CacheRow,
    /// Threads of a row.
    pub(super) items: usize,
    /// Threads of all rows.
    pub(super) n_items: usize,
}

impl Cells {
    /// Of the rows of `x` in a cache.
    pub(super) fn new(x: &TensorDesc, cache: &TensorDesc) -> Result<Self, OpError> {
        let row = page_row(cache)?;
        // Plain types: a thread makes a word. Blocks: a thread owns 4 elements, and a row is an even number of blocks.
        let items = if cache.dtype.is_block() {
            row.padded_elems().next_multiple_of(64) / 4
        } else {
            row.n_words()
        };
        Ok(Self {
            row,
            items,
            n_items: x.rows() * items,
        })
    }

    /// Blocks of threads.
    pub(super) fn n_blocks(&self) -> usize {
        self.n_items.div_ceil(THREADS as usize)
    }
}

/// Adds what the encoder of a cache type is specialised by.
pub(super) fn encoder(spec: Spec, dtype: DType) -> Spec {
    let bits = match dtype {
        DType::F32 => 32,
        DType::Q8_0 => 8,
        DType::Q5_0 | DType::Q5_1 => 5,
        DType::Q4_0 | DType::Q4_1 => 4,
        _ => 16,
    };
    spec.with("BITS", bits)
        .flag("BF16", dtype == DType::BF16)
        .flag("RANGED", matches!(dtype, DType::Q4_1 | DType::Q5_1))
}

/// Refuses an operand that is not a vector of `n` indices or positions.
pub(crate) fn expect_indices(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    n: usize,
) -> Result<(), OpError> {
    if desc.dtype != DType::I32 || desc.layout != Layout::Rows || desc.shape != [n] {
        return Err(bad_operand(op, name, format!("i32[{n}]"), desc));
    }
    if !desc.is_contiguous() {
        return Err(bad_operand(op, name, "contiguous", desc));
    }
    Ok(())
}

/// Refuses an operand that is not a whole paged cache.
pub(crate) fn expect_pages(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
) -> Result<(), OpError> {
    let is_pages = desc.layout == Layout::Pages
        && desc.rank() == 4
        && desc.shape[2] == PAGE
        && CACHE_TYPES.contains(&desc.dtype);
    if !is_pages {
        let expected = format!("pages [n_pages, n_kv_heads, {PAGE}, head_dim] of a cache type");
        return Err(bad_operand(op, name, expected, desc));
    }
    if !desc.is_contiguous() || desc.offset != 0 {
        return Err(bad_operand(op, name, "a whole cache", desc));
    }
    Ok(())
}

/// The layout of the rows of a paged cache that kernels index by 32-bit words.
pub(crate) fn page_row(desc: &TensorDesc) -> Result<CacheRow, OpError> {
    let row = CacheRow::new(desc.dtype, desc.last());
    let n_words = desc.rows() as u64 * row.n_words() as u64;
    if n_words > u64::from(u32::MAX) {
        return Err(OpError::Limit {
            what: "words of a cache",
            needed: n_words,
            limit: u64::from(u32::MAX),
        });
    }
    Ok(row)
}
