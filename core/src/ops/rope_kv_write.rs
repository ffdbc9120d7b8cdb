//! `rope_kv_write`: rotates the queries and keys of a step and encodes its keys and values into a paged cache.
//!
//! `y = rope(x[.., ..n_heads, ..])`, `k_cache[slot] = encode(rope(x[.., n_heads.., ..]))`, `v_cache[slot] = encode(v)`
//! with `slot = slots[t]`: what [`super::rope`] and two [`super::kv_write`] do, in one launch and
//! without a copy of the rotated keys.
//!
//! # Shapes
//! `x`: f32 `[n_tokens, n_heads + n_kv_heads, k_dim]`, queries then keys; `v`: f32 `[n_tokens, n_kv_heads, v_dim]`; the
//! last axis of both contiguous; `pos`, `table`: see [`super::rope`]; `slots`: i32 `[n_tokens]`;
//! `k_cache`, `v_cache`: pages `[n_pages, n_kv_heads, PAGE, dim]` of one cache type; `y`: f32
//! `[n_tokens, n_heads, k_dim]`, contiguous.
//! # Numerics
//! As the parts; a code of a key may be the next one where the rotation's rounding carries it over a border.
//! # Edge cases
//! As the parts: a negative position does not turn, a slot outside the cache is skipped.
//! # Source
//! `lib/rotate` and `lib/kv_encode`, which the parts share.

use std::fmt;

use super::kv_write::{self, Cells, encoder, expect_indices, expect_pages};
use super::rope::{self, Rope, RopeMode, Turn};
use super::{expect_f32, take};
use crate::PAGE;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

const THREADS: u32 = kv_write::THREADS;
// Both parts count their blocks by the same size.
const _: () = assert!(THREADS == rope::THREADS, "one size of a block");

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeKvWrite {
    /// Which channels form a pair.
    pub mode: RopeMode,
    /// Rotated channels, even and at most the head size.
    pub n_rot: usize,
    /// Heads of `x` that are queries, at least 1.
    pub n_heads: usize,
}

impl RopeKvWrite {
    /// The one name.
    pub const NAME: &str = "rope_kv_write";

    /// The part that rotates.
    pub fn rope(&self) -> Rope {
        Rope {
            mode: self.mode,
            n_rot: self.n_rot,
        }
    }

    /// The queries and the keys of `x`.
    pub(crate) fn parts(&self, x: &TensorDesc) -> Option<[TensorDesc; 2]> {
        let n_kv_heads = x.shape.get(1)?.checked_sub(self.n_heads)?;
        Some([
            x.narrow(1, 0, self.n_heads)?,
            x.narrow(1, self.n_heads, n_kv_heads)?,
        ])
    }
}

impl fmt::Display for RopeKvWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            n_rot,
            n_heads,
        } = self;
        write!(
            f,
            "{}[{}, n_rot={n_rot}, n_heads={n_heads}]",
            Self::NAME,
            mode.name()
        )?;
        match mode.sections() {
            Some(sections) => write!(f, "{sections:?}"),
            None => Ok(()),
        }
    }
}

impl Op for RopeKvWrite {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, v, pos, table, slots] = take(Self::NAME, inputs)?;
        let [k_cache, v_cache] = take(Self::NAME, inouts)?;
        self.rope().outputs(&[x, pos, table], &[])?;
        let n_tokens = x.shape[0];
        expect_pages(Self::NAME, "k_cache", k_cache)?;
        expect_pages(Self::NAME, "v_cache", v_cache)?;
        let n_kv_heads = k_cache.shape[1];
        if self.n_heads == 0 || x.shape[1..] != [self.n_heads + n_kv_heads, k_cache.last()] {
            let expected = format!(
                "[n_tokens, {} queries, at least 1, and {n_kv_heads} keys, {}]",
                self.n_heads,
                k_cache.last()
            );
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        if v_cache.dtype != k_cache.dtype || v_cache.shape[..3] != k_cache.shape[..3] {
            let expected = format!(
                "{} pages [{}, {n_kv_heads}, {PAGE}, v_dim]",
                k_cache.dtype, k_cache.shape[0]
            );
            return Err(bad_operand(Self::NAME, "v_cache", expected, v_cache));
        }
        expect_f32(Self::NAME, "v", v)?;
        if v.shape != [n_tokens, n_kv_heads, v_cache.last()] {
            let expected = format!("[{n_tokens}, {n_kv_heads}, {}]", v_cache.last());
            return Err(bad_operand(Self::NAME, "v", expected, v));
        }
        expect_indices(Self::NAME, "slots", slots, n_tokens)?;
        Ok(vec![TensorDesc::f32([n_tokens, self.n_heads, x.last()])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, v, pos, table, slots] = take(Self::NAME, operands.inputs)?;
        let [k_cache, v_cache] = take(Self::NAME, operands.inouts)?;
        let Some([queries, keys]) = self.parts(x) else {
            return Err(bad_operand(Self::NAME, "x", "queries and keys", x));
        };
        let turn = Turn::new(&self.rope(), &queries, caps);
        let (k, v_cells) = (Cells::new(&keys, k_cache)?, Cells::new(v, v_cache)?);
        let spec = encoder(Spec::threads(THREADS), k_cache.dtype);
        Ok(Launches::one(Launch {
            entry: if k_cache.dtype.is_block() {
                "rope_kv_write_blocks"
            } else {
                Self::NAME
            },
            spec: turn.spec(spec),
            params: turn
                .params(Params::new(), &queries, pos, table)
                .u32("q_blocks", turn.n_blocks())
                .u32("k_blocks", k.n_blocks())
                .u32("n_kv_heads", k_cache.shape[1])
                .u32("n_cells", k_cache.shape[0] * PAGE)
                .u32("slots_off", slots.offset)
                .u32("k_items", k.items)
                .u32("k_n_items", k.n_items)
                .u32("k_words", k.row.n_words())
                .u32("k_narrow", k.row.narrow_words())
                .u32("v_head_dim", v.last())
                .u32("v_items", v_cells.items)
                .u32("v_n_items", v_cells.n_items)
                .u32("v_words", v_cells.row.n_words())
                .u32("v_narrow", v_cells.row.narrow_words())
                .rows(Self::NAME, "v", v)?,
            grid: fold_grid(turn.n_blocks() + k.n_blocks() + v_cells.n_blocks(), caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Input(4),
                Binding::Inout(0),
                Binding::Inout(1),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let [x, v, pos, table, slots] = operands.inputs else {
            return Cost::default();
        };
        let Some([queries, keys]) = self.parts(x) else {
            return Cost::default();
        };
        let turned = self.rope().cost(Operands {
            inputs: &[&queries, pos, table],
            ..operands
        });
        let written =
            [(&keys, operands.inouts[0]), (*v, operands.inouts[1])].map(|(rows, cache)| {
                kv_write::KvWrite.cost(Operands {
                    inputs: &[rows, slots],
                    inouts: &[cache],
                    ..operands
                })
            });
        // Keys turn too, from the same table.
        let turns = Cost {
            bytes: 0,
            flops: (3 * self.n_rot * keys.rows()) as u64,
        };
        turned + written[0] + written[1] + turns
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        self.rope().tolerance(operands)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::rope_kv_write::rope_kv_write(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
