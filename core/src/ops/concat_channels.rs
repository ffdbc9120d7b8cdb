//! `concat_channels`: the rows of two tensors side by side.
//!
//! `y[.., i] = a[.., i]` for `i < n_a`, then `b[.., i - n_a]`
//!
//! # Shapes
//! `a`: f32 `[.., n_a]`, `b`: f32 `[.., n_b]` of the same outer axes, each with a contiguous last axis and at most two
//! outer strides, which may be 0; `y`: `[.., n_a + n_b]`, contiguous.
//! # Source
//! Concatenation along the last axis: the latent and the rotated part of keys and queries in DeepSeek-V2 2024,
//! arXiv:2405.04434, equation 18.

use std::fmt;

use super::elementwise::walk_one;
use super::{expect_f32, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcatChannels;

impl ConcatChannels {
    /// The one name.
    pub const NAME: &str = "concat_channels";
}

impl fmt::Display for ConcatChannels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for ConcatChannels {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [a, b] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "a", a)?;
        expect_f32(Self::NAME, "b", b)?;
        let (Some((n_a, outer)), Some((n_b, outer_b))) =
            (a.shape.split_last(), b.shape.split_last())
        else {
            return Err(bad_operand(Self::NAME, "a", "of one axis at least", a));
        };
        if outer != outer_b {
            let expected = format!("{outer:?} and a last axis of any length");
            return Err(bad_operand(Self::NAME, "b", expected, b));
        }
        Ok(vec![TensorDesc::f32([outer, &[n_a + n_b]].concat())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [a, b] = take(Self::NAME, operands.inputs)?;
        // The output is contiguous, so its elements are one long row.
        let y = TensorDesc::f32([a.rows() * (a.last() + b.last())]);
        let walk = walk_one(Self::NAME, &y, caps)?;
        let operands = Params::new()
            .u32("width", a.last() + b.last())
            .u32("n_first", a.last())
            .rows(Self::NAME, "first", a)?
            .rows(Self::NAME, "second", b)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: walk.params.and(&operands),
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs.iter().map(|x| x.n_elems() as u64);
        Cost {
            bytes: 8 * n.sum::<u64>(),
            flops: 0,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::concat_channels::concat_channels(args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
