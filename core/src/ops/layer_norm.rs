//! `layer_norm`: shifts each row to mean 0 and scales it to variance 1, then applies a learned weight and bias.
//!
//! `y[t, i] = (x[t, i] - m) / sqrt(mean((x[t, ..] - m)^2) + eps) * w[i] + b[i]` with `m = mean(x[t, ..])`
//!
//! # Shapes
//! `x`: `[.., n]`, the last axis contiguous; `w`, `b`: `[n]`; `y`: as `x`, contiguous.
//! # Numerics
//! Two passes in f32 over `LANES` partial sums: the mean first, then the squares of the differences, so that a common
//! offset cancels before it is squared. A constant row gives `b` even if `eps` is 0.
//! # Source
//! Ba, Kiros and Hinton 2016, arXiv:1607.06450, equation 3.

use std::fmt;

use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, expect_vector, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
}

impl LayerNorm {
    /// The one name.
    pub const NAME: &str = "layer_norm";
}

impl fmt::Display for LayerNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[eps={}]", Self::NAME, self.eps)
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, w, b] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        expect_vector(Self::NAME, "w", w, x.last())?;
        expect_vector(Self::NAME, "b", b, x.last())?;
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, ..] = take::<3>(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(x.rows(), x.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec,
            params: Params::new()
                .u32("n_rows", x.rows())
                .u32("n", x.last())
                .f32("eps", self.eps)
                .rows(Self::NAME, "x", x)?,
            grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n + 8 * operands.inputs[0].last() as u64,
            flops: 7 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        // The mean has the roundings of a sum, then come those of the norm of the differences.
        let norm = norm_tolerance(operands.inputs[0].last());
        Tolerance {
            tau: 2.0 * norm.tau,
            ..norm
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::layer_norm::layer_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
