//! `gated_rms_norm`: [`rms_norm`](super::rms_norm) of one tensor times an activation of another.
//!
//! `y[t, i] = x[t, i] / sqrt(mean(x[t, ..]^2) + eps) * w[i] * act(z[t, i])`, `act` by kind: `silu(z) = z * sigmoid(z)` or
//! `sigmoid(z)`.
//!
//! # Shapes
//! `x`, `z`: f32 `[.., n]`, the last axis contiguous, either may be a view; `w`: `[n]`; `y`: as `x`, contiguous.
//! # Numerics
//! As `rms_norm`. Exponentials have non-positive arguments only.
//! # Source
//! The output norm of gated delta nets: Yang et al. 2024, arXiv:2412.06464, section 3.4.

use std::fmt;

use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, expect_shape, expect_vector, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// `z * sigmoid(z)`.
    Silu,
    /// `sigmoid(z)`.
    Sigmoid,
}

impl GateKind {
    /// The lower-case word used in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct GatedRmsNorm {
    /// Added to the mean of squares.
    pub eps: f32,
    /// The activation of the gate.
    pub gate: GateKind,
}

impl GatedRmsNorm {
    /// The one name.
    pub const NAME: &str = "gated_rms_norm";
}

impl fmt::Display for GatedRmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, eps={}]", Self::NAME, self.gate.name(), self.eps)
    }
}

impl Op for GatedRmsNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, z, w] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        expect_f32(Self::NAME, "z", z)?;
        expect_shape(Self::NAME, "z", z, &x.shape)?;
        expect_vector(Self::NAME, "w", w, x.last())?;
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, z, _] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(x.rows(), x.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: spec.flag("SILU", self.gate == GateKind::Silu),
            params: Params::new()
                .u32("n_rows", x.rows())
                .u32("n", x.last())
                .f32("eps", self.eps)
                .rows(Self::NAME, "x", x)?
                .rows(Self::NAME, "z", z)?,
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
            bytes: 12 * n + 4 * operands.inputs[0].last() as u64,
            flops: 10 * n,
        }
    }

    /// The norm's, and a sigmoid whose growth with the gate the magnitudes carry.
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let norm = norm_tolerance(operands.inputs[0].last());
        Tolerance {
            tau: norm.tau + 8.0 * Tolerance::U,
            nmse: 1e-11,
            ..norm
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::gated_rms_norm::gated_rms_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
