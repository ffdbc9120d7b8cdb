//! `index_score`: how much each token wants each block of its own sequence, by the pooled keys of an indexer.
//!
//! `s[t, 0, e] = scale * sum_h w[t, h] * max(0, q[t, h] . k_e)`; without weights `w = 1`
//!
//! # Shapes
//! `q`: f32 `[n_tokens, n_heads, dim]`, the last axis contiguous; `keys`: block pages
//! `[n_pages, 1, PAGE / ratio, dim]` of any cache type; `page_table`: i32 `[n_seq_rows, max_pages]`; `seq_rows`,
//! `positions`: i32 `[n_tokens]`; `w`, optional: f32 `[n_tokens, n_heads]`, the last axis contiguous; weights may be
//! negative. The output: f32 `[n_tokens, 1, max_len / ratio]`, at least one block.
//! # Visibility
//! Candidates of a token at position `p` are the blocks `e < (p + 1) / ratio`: those that are complete, the token's own
//! if the token is its last. Everything else reads -inf: blocks further on, those of pages outside the cache, all
//! blocks of padding tokens. Their keys are never read. A score of 0 is common and says nothing about visibility.
//! `ratio` 1 is the lightning indexer: a block is a token.
//! # Cost
//! The only part of sparse attention that grows with the context, by a key of `dim` channels for every `ratio` tokens.
//! The scores of a step grow with tokens times blocks: prompts are scored a few tokens at a time, see `attend_sparse`
//! of the engine.
//! # Numerics
//! Keys decoded to f32, products and sums f32, heads summed in order of four.
//! # Source
//! DeepSeek-V3.2-Exp 2025, equation 1.

use std::fmt;

use super::attention::{MAX_HEAD_DIM, cache_lib};
use super::kv_write::{expect_indices, page_row};
use super::sparse_attention::{expect_ratio, expect_table};
use super::{expect_f32, expect_shape, take};
use crate::PAGE;
use crate::dtype::CACHE_TYPES;
use crate::error::{OpError, bad_operand};
use crate::format::cache_row::CacheRow;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// Shared memory that the kernel allows itself, in bytes.
const SHARED_BYTES: usize = 16 * 1024;

/// Steps of at least this many tokens share each key among four of them. Smaller ones are often of many sequences,
/// whose tokens share nothing.
const SHARING_TOKENS: usize = 16;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct IndexScore {
    /// Factor of the scores.
    pub scale: f32,
    /// Tokens of a block, a power of two up to [`PAGE`].
    pub ratio: usize,
    /// Upper bound of position + 1 in this step's bucket.
    pub max_len: usize,
}

impl IndexScore {
    /// The one name.
    pub const NAME: &str = "index_score";

    /// Blocks of a row of scores.
    pub fn n_blocks(&self) -> usize {
        (self.max_len / self.ratio.max(1)).max(1)
    }
}

impl fmt::Display for IndexScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[scale={}, ratio={}, max_len={}]",
            Self::NAME,
            self.scale,
            self.ratio,
            self.max_len
        )
    }
}

/// The operands, and the weights if there are any.
fn parts<'a>(
    inputs: &[&'a TensorDesc],
) -> Result<([&'a TensorDesc; 5], Option<&'a TensorDesc>), OpError> {
    match inputs {
        [rest @ .., w] if rest.len() == 5 => Ok((take(IndexScore::NAME, rest)?, Some(w))),
        _ => Ok((take(IndexScore::NAME, inputs)?, None)),
    }
}

impl Op for IndexScore {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let ([q, keys, page_table, seq_rows, positions], w) = parts(inputs)?;
        expect_ratio(Self::NAME, self.ratio)?;
        expect_f32(Self::NAME, "q", q)?;
        expect_block_pages(Self::NAME, "keys", keys, self.ratio)?;
        if q.rank() != 3 || q.last() != keys.last() {
            let expected = format!("[n_tokens, n_heads, {}]", keys.last());
            return Err(bad_operand(Self::NAME, "q", expected, q));
        }
        expect_table(Self::NAME, page_table)?;
        expect_indices(Self::NAME, "seq_rows", seq_rows, q.shape[0])?;
        expect_indices(Self::NAME, "positions", positions, q.shape[0])?;
        if let Some(w) = w {
            expect_f32(Self::NAME, "w", w)?;
            expect_shape(Self::NAME, "w", w, &q.shape[..2])?;
        }
        Ok(vec![TensorDesc::f32([q.shape[0], 1, self.n_blocks()])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let ([q, keys, page_table, seq_rows, positions], w) = parts(operands.inputs)?;
        let dim = q.last();
        if !dim.is_multiple_of(4) || dim == 0 || dim > MAX_HEAD_DIM {
            let expected = format!("of a size that is a multiple of 4, 4 to {MAX_HEAD_DIM}");
            return Err(bad_operand(Self::NAME, "keys", expected, keys));
        }
        let row = page_row(keys)?;
        let n_tokens = q.shape[0];
        let n_blocks = self.n_blocks();
        let q_len = dim.next_multiple_of(64);
        let shared = SHARED_BYTES.min(caps.max_shared_bytes as usize);
        let tokens = match n_tokens {
            0..SHARING_TOKENS => 1,
            _ if 64 * q_len <= shared => 4,
            _ if 32 * q_len <= shared => 2,
            _ => 1,
        };
        // As in products: eight lanes of a CPU pass queries to one another.
        let shuffles = tokens == 1 && caps.class == DeviceClass::Software && caps.warp == Some(8);
        let threads = match caps.class {
            _ if shuffles => 8,
            DeviceClass::Software => 64,
            _ => 128.min(caps.max_threads_per_block),
        };
        // Two keys a thread.
        let n_chunks = n_blocks.div_ceil(2 * threads as usize);
        let n_groups = n_tokens.div_ceil(tokens) * n_chunks;
        let (w_s0, w_off) = w.map_or((0, 0), |w| (w.strides[0], w.offset));
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads)
                .with("Q_LEN", q_len as u32)
                .flag("WEIGHTED", w.is_some())
                .import("h", format!("heads_{}", 4 * tokens))
                .import(
                    "s",
                    if shuffles {
                        "query_shuffle"
                    } else {
                        "query_shared"
                    },
                )
                .import("k", cache_lib(keys.dtype)),
            params: Params::new()
                .u32("n_groups", n_groups)
                .u32("n_chunks", n_chunks)
                .u32("n_tokens", n_tokens)
                .u32("n_heads", q.shape[1])
                .u32("dim", dim)
                .u32("n_blocks", n_blocks)
                .u32("ratio", self.ratio)
                .u32("page_blocks", PAGE / self.ratio)
                .u32("k_words", row.n_words())
                .u32("k_narrow", row.narrow_words())
                .u32("n_pages", keys.shape[0])
                .u32("n_seq_rows", page_table.shape[0])
                .u32("max_pages", page_table.shape[1])
                .f32("scale", self.scale)
                .u32("q_s0", q.strides[0])
                .u32("q_s1", q.strides[1])
                .u32("q_off", q.offset)
                .u32("table_off", page_table.offset)
                .u32("seq_off", seq_rows.offset)
                .u32("pos_off", positions.offset)
                .u32("w_s0", w_s0)
                .u32("w_off", w_off),
            grid: fold_grid(n_groups, caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Input(4),
                // Not read without weights, but bound.
                Binding::Input(if w.is_some() { 5 } else { 0 }),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let (q, keys) = (operands.inputs[0], operands.inputs[1]);
        let n_blocks = self.n_blocks();
        // Tokens of one sequence share the keys.
        let n_seqs = q.shape[0].min(operands.inputs[2].shape[0]);
        let key_bytes = 4 * CacheRow::new(keys.dtype, keys.last()).n_words();
        Cost {
            bytes: (n_seqs * n_blocks * key_bytes + 4 * q.n_elems() + 4 * q.shape[0] * n_blocks)
                as u64,
            flops: (2 * q.n_elems() * n_blocks) as u64,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let q = operands.inputs[0];
        let (n_heads, dim) = (q.shape[1] as f64, q.last() as f64);
        // Random roundings of a product of `dim` terms, then of a sum over heads; weights and scale.
        let units = 2.0 * (4.0 + dim.sqrt()) + n_heads.sqrt();
        Tolerance::units(units, q.shape[1] * q.last(), 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::index_score::index_score(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Refuses an operand that is not a whole cache of one row for each block of `ratio` tokens.
pub(crate) fn expect_block_pages(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    ratio: usize,
) -> Result<(), OpError> {
    let rows = PAGE / ratio;
    let is_pages = desc.layout == Layout::Pages
        && desc.rank() == 4
        && desc.shape[1..3] == [1, rows]
        && CACHE_TYPES.contains(&desc.dtype)
        && desc.is_contiguous()
        && desc.offset == 0;
    if !is_pages {
        let expected = format!("a whole cache [n_pages, 1, {rows}, dim] of a cache type");
        return Err(bad_operand(op, name, expected, desc));
    }
    Ok(())
}
