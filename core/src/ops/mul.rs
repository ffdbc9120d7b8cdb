//! `mul`: multiplies two tensors, the second repeated on every axis as often as it fits.
//!
//! `y[.., i] = a[.., i] * b[.., i mod b_i]`
//!
//! # Shapes
//! `a`: any; `b`: of `a`'s rank or less, aligned to the last axes, each axis of `a` a multiple of `b`'s (1 included);
//! the last axes are contiguous, at most two outer strides or repetitions remain once axes are merged.
//! `y`: as `a`, contiguous. All f32.

use std::fmt;

use super::elementwise::{repeated, walk_two};
use super::take;
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mul;

impl Mul {
    /// The one name.
    pub const NAME: &str = "mul";
}

impl fmt::Display for Mul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for Mul {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [a, b] = take(Self::NAME, inputs)?;
        Ok(vec![repeated(Self::NAME, a, b)?])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [a, b] = take(Self::NAME, operands.inputs)?;
        let walk = walk_two(Self::NAME, a, b, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: walk.params,
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n + 4 * operands.inputs[1].n_elems() as u64,
            flops: n,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::units(2.0, 1, 1e-13)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::mul::mul(args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
