//! `unary`: a function of each element.
//!
//! `y = f(x)`, by kind:
//!
//! | kind | f(x) |
//! |---|---|
//! | `silu` | `x * sigmoid(x)` |
//! | `sigmoid` | `1 / (1 + exp(-x))` |
//!
//! # Shapes
//! `x`: any f32 with a contiguous last axis and at most two outer strides; `y`: as `x`, contiguous.
//! # Numerics
//! Exponentials have non-positive arguments only; for large `|x|` the limits come out exactly.
//! # Source
//! Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2 (silu).

use std::fmt;

use super::elementwise::walk_one;
use super::{expect_f32, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryKind {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl UnaryKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Silu, Self::Sigmoid];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unary {
    /// The function.
    pub kind: UnaryKind,
}

impl Unary {
    /// The one name.
    pub const NAME: &str = "unary";
}

impl fmt::Display for Unary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", Self::NAME, self.kind.name())
    }
}

impl Op for Unary {
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
        let walk = walk_one(Self::NAME, x, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            // A constant: software drivers compute every branch of a switch. A model has one or two kinds.
            spec: Spec::threads(walk.threads).with("KIND", self.kind as u32),
            params: walk.params,
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n,
            flops: 10 * n,
        }
    }

    /// Magnitudes carry the part of the bound that grows with `|x|`.
    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::units(8.0, 1, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::unary::unary(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
