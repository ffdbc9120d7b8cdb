//! `add_rms_norm`: adds two tensors and normalises the sum; both results are kept.
//!
//! `sum = a + b`, `y[t, i] = sum[t, i] / sqrt(mean(sum[t, ..]^2) + eps) * w[i]`
//!
//! # Shapes
//! `a`, `b`: `[.., n]` of one shape, the last axis contiguous, two outer strides each; `w`: `[n]`;
//! `sum`, `y`: as `a`, contiguous.
//! # Numerics
//! As [`rms_norm`](super::rms_norm) of the rounded sum.
//! # Source
//! The residual add before the norm of a transformer block; Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.

use std::fmt;

use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, expect_shape, expect_vector, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNorm {
    /// Added to the mean of squares.
    pub eps: f32,
}

impl AddRmsNorm {
    /// The one name.
    pub const NAME: &str = "add_rms_norm";
}

impl fmt::Display for AddRmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[eps={}]", Self::NAME, self.eps)
    }
}

impl Op for AddRmsNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [a, b, w] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "a", a)?;
        expect_f32(Self::NAME, "b", b)?;
        expect_shape(Self::NAME, "b", b, &a.shape)?;
        expect_vector(Self::NAME, "w", w, a.last())?;
        Ok(vec![
            TensorDesc::f32(a.shape.clone()),
            TensorDesc::f32(a.shape.clone()),
        ])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [a, b, _] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(a.rows(), a.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec,
            params: Params::new()
                .u32("n_rows", a.rows())
                .u32("n", a.last())
                .f32("eps", self.eps)
                .rows(Self::NAME, "a", a)?
                .rows(Self::NAME, "b", b)?,
            grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Output(0),
                Binding::Output(1),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 16 * n + 4 * operands.inputs[0].last() as u64,
            flops: 5 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        norm_tolerance(operands.inputs[0].last())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::add_rms_norm::add_rms_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
