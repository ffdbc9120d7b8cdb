//! `ple_gate`: gates an n-gram embedding by its agreement with every stream of the residual.
//!
//! ```text
//! k^ = key[t, c, ..] / rms(key[t, c, ..]) * w_key[c, ..],   r^ = r[t, c, ..] / rms(r[t, c, ..]) * w_query[c, ..]
//! s = (k^ . r^) / sqrt(D),   a = sigmoid(sign(s) * sqrt(max(|s|, 1e-6))),   sign(0) = 0
//! y[t, c, i] = a * value[t, i]
//! ```
//! `rms(x) = sqrt(mean(x^2) + eps)`
//!
//! # Shapes
//! `key`: `[T, C, D]`, contiguous; `value`: `[T, D]`, contiguous; `r`: `[T, C, D]`, the last axis contiguous (a tensor
//! repeated over the streams will do); `w_key`, `w_query`: `[C, D]`; `y`: `[T, C, D]`, contiguous.
//! # Numerics
//! Three f32 sums in one pass. The root makes `a` steep near `s = 0` (and it jumps there by 5e-4), so the bound of an
//! element is how far `a` can move when `s` moves by its own rounding error.
//! # Source
//! The `qwen4exp` architecture of published models.

use std::fmt;

use super::rms_norm::{norm_tolerance, row_geometry};
use super::{expect_f32, expect_shape, expect_streams, take};
use crate::error::{OpError, bad_operand};
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct PleGate {
    /// Added to the means of squares.
    pub eps: f32,
}

impl PleGate {
    /// The one name.
    pub const NAME: &str = "ple_gate";
}

impl fmt::Display for PleGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[eps={}]", Self::NAME, self.eps)
    }
}

impl Op for PleGate {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [key, value, r, w_key, w_query] = take(Self::NAME, inputs)?;
        let [n_tokens, _, d_model] = expect_streams(Self::NAME, "r", r)?;
        for (name, desc, shape) in [
            ("key", key, &r.shape[..]),
            ("value", value, &[n_tokens, d_model]),
            ("w_key", w_key, &r.shape[1..]),
            ("w_query", w_query, &r.shape[1..]),
        ] {
            expect_f32(Self::NAME, name, desc)?;
            expect_shape(Self::NAME, name, desc, shape)?;
            if !desc.is_contiguous() {
                return Err(bad_operand(Self::NAME, name, "contiguous", desc));
            }
        }
        Ok(vec![TensorDesc::f32(r.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [_, _, r, _, _] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(r.rows(), r.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec,
            params: Params::new()
                .u32("n_rows", r.rows())
                .u32("n", r.last())
                .u32("n_streams", r.shape[1])
                .f32("eps", self.eps)
                .f32("scale", 1.0 / (r.last() as f32).sqrt())
                .rows(Self::NAME, "r", r)?,
            grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Input(4),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.outputs[0].n_elems() as u64;
        Cost {
            bytes: 12 * n + 4 * operands.inputs[1].n_elems() as u64,
            flops: 9 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        // Errors of the sums as in a norm; rows are one common factor, so their squared error has no smaller bound.
        Tolerance {
            nmse: 1e-4,
            ..norm_tolerance(operands.inputs[2].last())
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::ple_gate::ple_gate(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
