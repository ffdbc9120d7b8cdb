//! `topk_blocks`: the `k` blocks of largest score that each token sees, in ascending order.
//!
//! # Shapes
//! `scores`: f32 `[n_tokens, n_groups, n]`, the last axis contiguous; `positions`: i32 `[n_tokens]`;
//! the selection: i32 `[n_tokens, n_groups, k]`. It is the output, or an in-place operand that is overwritten: a view
//! of some rows of a larger selection, for prompts that are scored a few tokens at a time.
//! # Selection
//! Candidates of a token at position `p` are the blocks `e < min(n, (p + 1) / ratio)`, those that are complete, with
//! scores above -inf: NaN is never selected, and what lies behind the last candidate is never read. The larger score
//! is better, of equal ones the lower index; -0 equals +0. Chosen indices come in ascending order, then -1.
//! # Launches
//! 1. The largest score of each group of neighbouring blocks, all groups at once.
//! 2. One block of threads a row: the `k` best groups hold the `k` best blocks, because each of `k` better groups has
//!    a block that beats all of any other group; ties by index carry over. A search by histograms finds a key `t` that
//!    `k` or a few more groups reach, so `t` bounds the answer from below; blocks of these groups with keys of at least
//!    `t` (barely more than `k` unless scores tie) are compacted in order, and a second, exact search among them ends
//!    it.
//!
//! Scores are read once, and about `2 * sqrt(n * k)` keys are looked at again, whatever the values. A radix select
//! over the scores themselves would read them two to four times, with a launch for each histogram.
//! # Numerics
//! Exact.

use std::fmt;

use super::kv_write::expect_indices;
use super::matmul::quads_piece;
use super::sparse_attention::expect_ratio;
use super::{expect_f32, expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopkBlocks {
    /// Blocks to keep.
    pub k: usize,
    /// Tokens of a block, a power of two up to a page.
    pub ratio: usize,
}

impl TopkBlocks {
    /// The one name.
    pub const NAME: &str = "topk_blocks";
}

impl fmt::Display for TopkBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[k={}, ratio={}]", Self::NAME, self.k, self.ratio)
    }
}

/// Scores of a group for rows of `n`: a power of two near `sqrt(n / k)`, so that both searches are of one size. Groups
/// are read four scores at a time; where they would be smaller, each score is its own.
fn group_elems(n: usize, k: usize) -> usize {
    match n / k.max(1) {
        0..4 => 1,
        ratio => ratio.isqrt().next_power_of_two().max(4),
    }
}

impl Op for TopkBlocks {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [scores, positions] = take(Self::NAME, inputs)?;
        expect_ratio(Self::NAME, self.ratio)?;
        expect_f32(Self::NAME, "scores", scores)?;
        if scores.rank() != 3 {
            let expected = "[n_tokens, n_groups, n]";
            return Err(bad_operand(Self::NAME, "scores", expected, scores));
        }
        expect_indices(Self::NAME, "positions", positions, scores.shape[0])?;
        let shape = [scores.shape[0], scores.shape[1], self.k];
        if inouts.is_empty() {
            return Ok(vec![TensorDesc::i32(shape)]);
        }
        let [selection] = take(Self::NAME, inouts)?;
        expect_type(Self::NAME, "selection", selection, DType::I32)?;
        if selection.shape != shape {
            let expected = format!("of shape {shape:?}");
            return Err(bad_operand(Self::NAME, "selection", expected, selection));
        }
        Ok(Vec::new())
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [scores, positions] = take(Self::NAME, operands.inputs)?;
        let (selection, target) = match (operands.inouts, operands.outputs) {
            ([selection], _) => (*selection, Binding::Inout(0)),
            (_, [selection]) => (*selection, Binding::Output(0)),
            _ => {
                return Err(OpError::Count {
                    op: Self::NAME,
                    expected: 1,
                    found: operands.outputs.len(),
                });
            }
        };
        let (n_rows, n) = (scores.rows(), scores.last());
        if n_rows * self.k == 0 {
            return Ok(Launches::default());
        }
        let group = group_elems(n, self.k);
        let n_groups = n.div_ceil(group);
        // Chosen groups, a few more than needed, so that one histogram finds them; then keys and indices of their blocks.
        let n_chosen = if group == 1 {
            0
        } else {
            (self.k + self.k / 4 + 16).min(n_groups)
        };
        let row_words = n_groups + n_chosen + 2 * n_chosen * group;
        let (group_threads, row_threads) = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => (32, 8),
            DeviceClass::Integrated | DeviceClass::Discrete => {
                (64, 256.min(caps.max_threads_per_block))
            }
        };
        // A thread has a group, or four groups of one.
        let n_items = if group == 1 { n.div_ceil(4) } else { n_groups };
        let n_parts = n_items.div_ceil(group_threads as usize).max(1);
        let spec = |threads| Spec::threads(threads).import("x", quads_piece(scores));
        let params = Params::new()
            .u32("n_rows", n_rows)
            .u32("n_per_token", scores.shape[1])
            .u32("n", n)
            .u32("k", self.k)
            .u32("ratio", self.ratio)
            .u32("group", group)
            .u32("n_groups", n_groups)
            .u32("n_chosen", n_chosen)
            .u32("n_parts", n_parts)
            .u32("row_words", row_words)
            .u32("pos_off", positions.offset)
            .rows(Self::NAME, "x", scores)?
            .rows(Self::NAME, "y", selection)?;
        let bindings = vec![
            Binding::Input(0),
            Binding::Input(1),
            Binding::Scratch(0),
            target,
        ];
        Ok(Launches {
            scratch: vec![4 * n_rows * row_words.max(1)],
            list: vec![
                Launch {
                    entry: "topk_blocks_groups",
                    spec: spec(group_threads),
                    params: params.clone(),
                    grid: fold_grid(n_rows * n_parts, caps)?,
                    bindings: bindings.clone(),
                },
                Launch {
                    entry: Self::NAME,
                    spec: spec(row_threads),
                    params,
                    grid: fold_grid(n_rows, caps)?,
                    bindings,
                },
            ],
        })
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let scores = operands.inputs[0];
        Cost {
            bytes: 4 * (scores.n_elems() + scores.rows() * self.k) as u64,
            flops: scores.n_elems() as u64,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::topk_blocks::topk_blocks(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
