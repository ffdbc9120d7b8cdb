//! `hc_combine`: adds a block's result to every stream of a hyper-connected residual.
//!
//! `y[t, c, i] = r[t, c, i] + 2 * sigmoid(scale * inject[t, c]) * x[t, i]`
//!
//! # Shapes
//! `r`: `[T, C, D]`, the last axis contiguous (a tensor repeated over the streams will do); `x`: `[T, D]`, contiguous;
//! `inject`: `[T, C]`, rows with any distance; `y`: `[T, C, D]`, contiguous.
//! # Numerics
//! f32; an inject weight of 0 gives a plain residual add.
//! # Source
//! The `qwen4exp` architecture of published models; Zhu et al. 2024, arXiv:2409.19606 (hyper-connections).

use std::fmt;

use super::elementwise::walk_streams;
use super::{expect_f32, expect_shape, expect_streams, take};
use crate::error::{OpError, bad_operand};
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct HcCombine {
    /// Multiplies the weights of the streams: 1 / C in published models.
    pub scale: f32,
}

impl HcCombine {
    /// The one name.
    pub const NAME: &str = "hc_combine";
}

impl fmt::Display for HcCombine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[scale={}]", Self::NAME, self.scale)
    }
}

impl Op for HcCombine {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [r, x, inject] = take(Self::NAME, inputs)?;
        operands_fit(Self::NAME, r, x, inject)?;
        Ok(vec![TensorDesc::f32(r.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [r, _, inject] = take(Self::NAME, operands.inputs)?;
        let walk = walk_streams(r, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: walk
                .params
                .f32("scale", self.scale)
                .rows(Self::NAME, "inject", inject)?,
            grid: walk.grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.outputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n + 4 * operands.inputs[1].n_elems() as u64,
            flops: 2 * n,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        // A sigmoid of a bounded weight, a product and a sum.
        Tolerance::units(14.0, 2, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::hc_combine::hc_combine(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Refuses operands that do not describe one residual and one result.
pub(crate) fn operands_fit(
    op: &'static str,
    r: &TensorDesc,
    x: &TensorDesc,
    inject: &TensorDesc,
) -> Result<(), OpError> {
    let [n_tokens, n_streams, d_model] = expect_streams(op, "r", r)?;
    expect_f32(op, "x", x)?;
    expect_shape(op, "x", x, &[n_tokens, d_model])?;
    if !x.is_contiguous() {
        return Err(bad_operand(op, "x", "contiguous", x));
    }
    expect_f32(op, "inject", inject)?;
    expect_shape(op, "inject", inject, &[n_tokens, n_streams])
}
