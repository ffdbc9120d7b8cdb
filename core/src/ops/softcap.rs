//! `softcap`: bounds values smoothly.
//!
//! `y = cap * tanh(x / cap)`
//!
//! # Shapes
//! `x`: any f32 with a contiguous last axis and at most two outer strides; `y`: as `x`, contiguous.
//! # Numerics
//! tanh is computed from an exponential of a non-positive argument, near 0 from a polynomial.

use std::fmt;

use super::elementwise::walk_one;
use super::{expect_f32, take};
use crate::error::OpError;
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Softcap {
    /// Bound on the absolute value of the result, positive.
    pub cap: f32,
}

impl Softcap {
    /// The one name.
    pub const NAME: &str = "softcap";
}

impl fmt::Display for Softcap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[cap={}]", Self::NAME, self.cap)
    }
}

impl Op for Softcap {
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
        if !(self.cap.is_normal() && self.cap > 0.0) {
            return Err(OpError::Operand {
                op: Self::NAME,
                operand: "cap",
                expected: "a positive number".to_owned(),
                found: self.cap.to_string(),
            });
        }
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let walk = walk_one(Self::NAME, x, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: walk
                .params
                .f32("cap", self.cap)
                // Division may be off by 2.5 ulp on a device, a product by half an ulp.
                .f32("inv_cap", 1.0 / self.cap),
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n,
            flops: 12 * n,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance {
            alpha: 1e-6,
            ..Tolerance::units(8.0, 1, 1e-9)
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::softcap::softcap(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
