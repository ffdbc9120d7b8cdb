//! `glu`: a gated linear unit, the activation of one tensor times another.
//!
//! `y = act(gate) * up`, by kind:
//!
//! | kind | act(x) |
//! |---|---|
//! | `swiglu` | `x * sigmoid(x)` |
//! | `geglu` | `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` |
//! | `geglu_erf` | `x / 2 * (1 + erf(x / sqrt(2)))` |
//! | `geglu_quick` | `x * sigmoid(1.702 x)` |
//! | `reglu` | `max(x, 0)` |
//! | `sigmoid` | `1 / (1 + exp(-x))` |
//!
//! # Shapes
//! `gate`, `up`: f32 of one shape, the last axis contiguous; both may be views of one tensor `[.., 2 F]`.
//! `y`: as `gate`, contiguous.
//! # Numerics
//! Exponentials have non-positive arguments only; for large `|x|` exactly 0 and `x` come out.
//! # Source
//! Shazeer 2020, arXiv:2002.05202; Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.

use std::fmt;

use super::elementwise::walk_two;
use super::{expect_f32, expect_shape, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GluKind {
    /// `x * sigmoid(x)`.
    Swiglu,
    /// GELU in its tanh form.
    Geglu,
    /// GELU in its exact form.
    GegluErf,
    /// `x * sigmoid(1.702 x)`.
    GegluQuick,
    /// `max(x, 0)`.
    Reglu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl GluKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Swiglu,
        Self::Geglu,
        Self::GegluErf,
        Self::GegluQuick,
        Self::Reglu,
        Self::Sigmoid,
    ];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swiglu => "swiglu",
            Self::Geglu => "geglu",
            Self::GegluErf => "geglu_erf",
            Self::GegluQuick => "geglu_quick",
            Self::Reglu => "reglu",
            Self::Sigmoid => "sigmoid",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glu {
    /// The activation.
    pub kind: GluKind,
}

impl Glu {
    /// The one name.
    pub const NAME: &str = "glu";
}

impl fmt::Display for Glu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", Self::NAME, self.kind.name())
    }
}

impl Op for Glu {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [gate, up] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "gate", gate)?;
        expect_f32(Self::NAME, "up", up)?;
        expect_shape(Self::NAME, "up", up, &gate.shape)?;
        Ok(vec![TensorDesc::f32(gate.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [gate, up] = take(Self::NAME, operands.inputs)?;
        let walk = walk_two(Self::NAME, gate, up, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            // A constant: software drivers compute every branch of a switch. A model has one kind.
            spec: Spec::threads(walk.threads).with("KIND", self.kind as u32),
            params: walk.params,
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 12 * n,
            flops: 12 * n,
        }
    }

    /// Magnitudes carry the part of the bound that grows with `|gate|`.
    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        match self.kind {
            GluKind::Reglu => Tolerance::units(2.0, 1, 1e-13),
            GluKind::Swiglu | GluKind::GegluQuick | GluKind::Sigmoid => {
                Tolerance::units(8.0, 1, 1e-11)
            }
            GluKind::Geglu | GluKind::GegluErf => Tolerance {
                alpha: 1e-6,
                ..Tolerance::units(8.0, 1, 1e-9)
            },
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::glu::glu(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
