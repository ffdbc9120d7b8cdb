//! `index_pool`: pools the raw keys of every block of tokens that the step completes.
//!
//! `pooled[b] = encode(rope(rms_norm(mean_i raw[ratio * b + i]) * w, position of the block's first token))`
//!
//! # Shapes
//! `raw`: pages `[n_pages, 1, PAGE, dim]` of any cache type, the keys of this step among them; `w`: f32 `[dim]`;
//! `rope_table`: as in [`rope`](super::rope); `page_table`: i32 `[n_seq_rows, max_pages]`; `seq_rows`, `positions`:
//! i32 `[n_tokens]`; in place `pooled`: block pages `[n_pages, 1, PAGE / ratio, dim]` of f32, f16 or bf16, in the same
//! pages: block `b` of a sequence is row `b % (PAGE / ratio)` of its page `b / (PAGE / ratio)`.
//! # Which blocks
//! A token at position `p` with `(p + 1) % ratio = 0` completes block `p / ratio`. Every other row of `pooled` stays as
//! it is, so a step of one token pools at most one block. Rows left over from before a truncation are stale until
//! their block is complete again; readers go by length and never see them.
//! # Numerics
//! The mean is over keys as stored, those of this step too, so the bits of a pooled key do not depend on how the prompt
//! was cut into steps; sums are f32. Storing is as in `kv_write`.
//! # Edge cases
//! Padding tokens, unknown sequence rows and pages outside the cache complete nothing.
//! # Source
//! Qwen3.8-Flash-Next: mean, then norm, then the rotation at the first member.

use std::fmt;

use super::attention::cache_lib;
use super::index_score::expect_block_pages;
use super::kv_write::{expect_indices, expect_pages, page_row};
use super::rope::{FINE, RopeMode};
use super::sparse_attention::{expect_ratio, expect_table};
use super::{expect_f32, expect_vector, take};
use crate::PAGE;
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::format::cache_row::CacheRow;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Longest key: a block holds a few in shared memory.
pub const MAX_DIM: usize = 512;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct IndexPool {
    /// Tokens of a block, a power of two up to [`PAGE`].
    pub ratio: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Which channels form a pair of the rotation. With sections a position is the same along their axes.
    pub mode: RopeMode,
    /// Rotated channels, even and at most `dim`.
    pub n_rot: usize,
}

impl IndexPool {
    /// The one name.
    pub const NAME: &str = "index_pool";
}

impl fmt::Display for IndexPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[ratio={}, eps={}, {}, n_rot={}]",
            Self::NAME,
            self.ratio,
            self.eps,
            self.mode.name(),
            self.n_rot
        )
    }
}

impl Op for IndexPool {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [raw, w, rope_table, page_table, seq_rows, positions] = take(Self::NAME, inputs)?;
        let [pooled] = take(Self::NAME, inouts)?;
        expect_ratio(Self::NAME, self.ratio)?;
        expect_pages(Self::NAME, "raw", raw)?;
        if raw.shape[1] != 1 || !raw.last().is_multiple_of(4) || raw.last() > MAX_DIM {
            let expected = format!("[n_pages, 1, {PAGE}, a multiple of 4 up to {MAX_DIM}]");
            return Err(bad_operand(Self::NAME, "raw", expected, raw));
        }
        expect_vector(Self::NAME, "w", w, raw.last())?;
        expect_f32(Self::NAME, "rope_table", rope_table)?;
        let fits = self.n_rot.is_multiple_of(2)
            && (2..=raw.last()).contains(&self.n_rot)
            && rope_table.rank() == 3
            && rope_table.shape[0] > FINE
            && rope_table.shape[1..] == [self.n_rot / 2, 2]
            && rope_table.is_contiguous()
            && rope_table.offset == 0;
        if !fits {
            let expected = format!(
                "contiguous [{FINE} + n_coarse, {}, 2], n_rot even and at most {}",
                self.n_rot / 2,
                raw.last()
            );
            return Err(bad_operand(Self::NAME, "rope_table", expected, rope_table));
        }
        // The last axis stands still in text: a pair of it would not turn.
        if (0..self.n_rot / 2).any(|pair| self.mode.axis(pair) == 3) {
            return Err(OpError::Attribute {
                op: Self::NAME,
                what: "mode",
                expected: "without sections, or with sections of the first three axes only"
                    .to_owned(),
                found: format!("{:?}", self.mode),
            });
        }
        expect_table(Self::NAME, page_table)?;
        expect_indices(Self::NAME, "positions", positions, seq_rows.n_elems())?;
        expect_indices(Self::NAME, "seq_rows", seq_rows, positions.n_elems())?;
        expect_block_pages(Self::NAME, "pooled", pooled, self.ratio)?;
        let fits = pooled.shape[0] == raw.shape[0]
            && pooled.last() == raw.last()
            && !pooled.dtype.is_block();
        if !fits {
            let expected = format!(
                "[{}, 1, {}, {}] of f32, f16 or bf16",
                raw.shape[0],
                PAGE / self.ratio,
                raw.last()
            );
            return Err(bad_operand(Self::NAME, "pooled", expected, pooled));
        }
        Ok(Vec::new())
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [raw, _, rope_table, page_table, seq_rows, positions] =
            take(Self::NAME, operands.inputs)?;
        let [pooled] = take(Self::NAME, operands.inouts)?;
        let (raw_row, pooled_row) = (page_row(raw)?, page_row(pooled)?);
        let dim = raw.last();
        let n_tokens = positions.n_elems();
        let pairs = self.n_rot / 2;
        let (first, second) = match self.mode {
            RopeMode::Norm => (2, 1),
            RopeMode::Neox | RopeMode::Mrope(_) | RopeMode::Imrope(_) => (1, pairs),
        };
        // A token each `LANES` threads, a key of it in shared memory: four keys are 8 KiB at most.
        let (threads, lanes) = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => (8, 8),
            DeviceClass::Integrated | DeviceClass::Discrete => {
                (128.min(caps.max_threads_per_block), 32)
            }
        };
        let tokens = (threads / lanes) as usize;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads)
                .with("LANES", lanes)
                .with("DIM_LEN", dim.next_multiple_of(64) as u32)
                .with("BITS", if pooled.dtype == DType::F32 { 32 } else { 16 })
                .flag("BF16", pooled.dtype == DType::BF16)
                .import("raw", cache_lib(raw.dtype)),
            params: Params::new()
                .u32("n_tokens", n_tokens)
                .u32("ratio", self.ratio)
                .u32("dim", dim)
                .f32("eps", self.eps)
                .u32("pairs", pairs)
                .u32("first", first)
                .u32("second", second)
                .u32("n_coarse", rope_table.shape[0] - FINE)
                .u32("raw_words", raw_row.n_words())
                .u32("raw_narrow", raw_row.narrow_words())
                .u32("pooled_words", pooled_row.n_words())
                .u32("n_pages", raw.shape[0])
                .u32("n_seq_rows", page_table.shape[0])
                .u32("max_pages", page_table.shape[1])
                .u32("table_off", page_table.offset)
                .u32("seq_off", seq_rows.offset)
                .u32("pos_off", positions.offset),
            grid: fold_grid(n_tokens.div_ceil(tokens), caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Input(4),
                Binding::Input(5),
                Binding::Inout(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let (raw, pooled) = (operands.inputs[0], operands.inouts[0]);
        let n_tokens = operands.inputs[5].n_elems();
        let bytes = |desc: &TensorDesc| 4 * CacheRow::new(desc.dtype, desc.last()).n_words();
        let n_blocks = n_tokens.div_ceil(self.ratio);
        Cost {
            bytes: (n_blocks * (self.ratio * bytes(raw) + bytes(pooled)) + 8 * n_tokens) as u64,
            flops: (n_blocks * raw.last() * (self.ratio + 7)) as u64,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let dim = operands.inputs[0].last();
        // The mean, the norm and the rotation, each relative to the terms that it adds up.
        let norm = super::rms_norm::norm_tolerance(dim);
        Tolerance {
            tau: norm.tau + (self.ratio as f64 + 8.0) * Tolerance::U,
            ..norm
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::index_pool::index_pool(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
