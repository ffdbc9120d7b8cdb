//! `hc_combine_norm`: adds a result to the streams of a residual and normalises each; both are kept.
//!
//! `sum[t, c, i] = r[t, c, i] + 2 * sigmoid(scale * inject[t, c]) * x[t, i]`,
//! `y[t, c, i] = sum[t, c, i] / sqrt(mean(sum[t, c, ..]^2) + eps) * w[c, i]`
//!
//! [`hc_combine`](super::hc_combine) of one block and the norm of the next: the streams are the widest live tensor, and
//! this reads them once instead of twice.
//!
//! # Shapes
//! As [`hc_combine`](super::hc_combine); `w`: `[C, D]`; `sum`, `y`: `[T, C, D]`, contiguous.
//! # Numerics
//! As [`rms_norm`](super::rms_norm) of the rounded sum.
//! # Source
//! The `qwen4exp` architecture of published models; Zhu et al. 2024, arXiv:2409.19606 (hyper-connections).

use std::fmt;

use super::hc_combine::operands_fit;
use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, expect_shape, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct HcCombineNorm {
    /// Multiplies the weights of the streams: 1 / C in published models.
    pub scale: f32,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl HcCombineNorm {
    /// The one name.
    pub const NAME: &str = "hc_combine_norm";
}

impl fmt::Display for HcCombineNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[scale={},eps={}]", Self::NAME, self.scale, self.eps)
    }
}

impl Op for HcCombineNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [r, x, inject, w] = take(Self::NAME, inputs)?;
        operands_fit(Self::NAME, r, x, inject)?;
        expect_f32(Self::NAME, "w", w)?;
        expect_shape(Self::NAME, "w", w, &r.shape[1..])?;
        Ok(vec![
            TensorDesc::f32(r.shape.clone()),
            TensorDesc::f32(r.shape.clone()),
        ])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [r, _, inject, _] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(r.rows(), r.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec,
            params: Params::new()
                .u32("n_rows", r.rows())
                .u32("n", r.last())
                .u32("n_streams", r.shape[1])
                .f32("eps", self.eps)
                .f32("scale", self.scale)
                .rows(Self::NAME, "r", r)?
                .rows(Self::NAME, "inject", inject)?,
            grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Output(0),
                Binding::Output(1),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.outputs[0].n_elems() as u64;
        Cost {
            bytes: 12 * n + 4 * operands.inputs[1].n_elems() as u64,
            flops: 6 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let norm = norm_tolerance(operands.inputs[0].last());
        // The sum that is normalised has the error of hc_combine.
        Tolerance {
            tau: norm.tau + 14.0 * Tolerance::U,
            nmse: 2e-11,
            ..norm
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::hc_combine_norm::hc_combine_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
