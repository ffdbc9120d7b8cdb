//! `l2_norm`: divides each row by its Euclidean length.
//!
//! `y[t, i] = x[t, i] / d`, with `d` by kind:
//!
//! | kind | d |
//! |---|---|
//! | `clamp` | `max(sqrt(sum(x^2)), eps)` |
//! | `add` | `sqrt(sum(x^2) + eps)` |
//!
//! # Shapes
//! `x`: f32 `[.., n]`, the last axis contiguous; `y`: as `x`, contiguous.
//! # Numerics
//! Accumulates in f32 over `LANES` partial sums. A row of zeros gives zeros even if `eps` is 0.
//! # Source
//! `clamp` is `torch.nn.functional.normalize`; `add` normalises the queries and keys of delta nets
//! (Yang et al. 2024, arXiv:2412.06464, section 3.4).

use std::fmt;

use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// How the divisor is kept away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Kind {
    /// The length, at least `eps`.
    Clamp,
    /// The root of the sum of squares plus `eps`.
    Add,
}

impl L2Kind {
    /// The lower-case word used in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clamp => "clamp",
            Self::Add => "add",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct L2Norm {
    /// How `eps` enters.
    pub kind: L2Kind,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

impl L2Norm {
    /// The one name.
    pub const NAME: &str = "l2_norm";
}

impl fmt::Display for L2Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, eps={}]", Self::NAME, self.kind.name(), self.eps)
    }
}

impl Op for L2Norm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(x.rows(), x.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: spec.flag("CLAMP", self.kind == L2Kind::Clamp),
            params: Params::new()
                .u32("n_rows", x.rows())
                .u32("n", x.last())
                .f32("eps", self.eps)
                .rows(Self::NAME, "x", x)?,
            grid,
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n,
            flops: 3 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        norm_tolerance(operands.inputs[0].last())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::l2_norm::l2_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
