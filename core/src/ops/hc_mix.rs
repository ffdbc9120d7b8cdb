//! `hc_mix`: the gated mean of the streams of a hyper-connected residual.
//!
//! `y[t, i] = 1 / C * sum_c x[t, c, i] * sigmoid(gate[t, c, i])`
//!
//! # Shapes
//! `x`: `[T, C, D]`, the normed streams, the last axis contiguous; `gate`: `[T, C, D]`, contiguous; `y`: `[T, D]`.
//! # Numerics
//! f32, streams summed in order.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcMix;

impl HcMix {
    /// The one name.
    pub const NAME: &str = "hc_mix";
}

impl fmt::Display for HcMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for HcMix {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, gate] = take(Self::NAME, inputs)?;
        let [n_tokens, _, d_model] = expect_streams(Self::NAME, "x", x)?;
        expect_f32(Self::NAME, "gate", gate)?;
        expect_shape(Self::NAME, "gate", gate, &x.shape)?;
        if !gate.is_contiguous() {
            return Err(bad_operand(Self::NAME, "gate", "contiguous", gate));
        }
        Ok(vec![TensorDesc::f32([n_tokens, d_model])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, _] = take(Self::NAME, operands.inputs)?;
        let walk = walk_streams(x, caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: walk.params.f32("weight", 1.0 / x.shape[1] as f32),
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let [n, d_model] = [operands.inputs[0].n_elems(), operands.outputs[0].n_elems()];
        Cost {
            bytes: (8 * n + 4 * d_model) as u64,
            flops: 10 * n as u64,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        // An activation a stream, as in glu, and a sum over the streams.
        let n_streams = operands.inputs[0].shape[1];
        Tolerance::units(10.0 + n_streams as f64, n_streams, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::hc_mix::hc_mix(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
