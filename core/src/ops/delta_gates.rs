//! `delta_gates`: decay and writing strength of a gated delta net from its two small projections.
//!
//! `gates[t, 0, h] = a[h] * softplus(alpha[t, h] + dt[h])`, the logarithm of the decay, and
//! `gates[t, 1, h] = sigmoid(beta[t, h])`
//!
//! # Shapes
//! `alpha`, `beta`: f32 `[n_tokens, n_heads]`, or `[n_tokens, n_groups, heads]` where the heads of a token lie in groups;
//! the last axis contiguous, either may be a view; `a`, `dt`: f32 `[n_heads]`, `a` at most 0; `gates`: f32
//! `[n_tokens, 2, n_heads]`.
//! # Numerics
//! `softplus(x) = max(x, 0) + ln(1 + exp(-|x|))`, relatively exact on both sides: the logarithm is a series in
//! `e / (2 + e)`, which is at most 1/3.
//! # Source
//! Yang et al. 2024, arXiv:2412.06464, section 3.4; Gu and Dao 2023, arXiv:2312.00752, section 3.5.2.

use std::fmt;

use super::{expect_f32, expect_shape, expect_vector, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

const THREADS: u32 = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaGates;

impl DeltaGates {
    /// The one name.
    pub const NAME: &str = "delta_gates";
}

impl fmt::Display for DeltaGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for DeltaGates {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [alpha, beta, a, dt] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "alpha", alpha)?;
        expect_f32(Self::NAME, "beta", beta)?;
        if !matches!(alpha.rank(), 2 | 3) {
            let expected = "[n_tokens, n_heads] or [n_tokens, n_groups, heads]";
            return Err(bad_operand(Self::NAME, "alpha", expected, alpha));
        }
        expect_shape(Self::NAME, "beta", beta, &alpha.shape)?;
        let n_heads = alpha.shape[1..].iter().product();
        expect_vector(Self::NAME, "a", a, n_heads)?;
        expect_vector(Self::NAME, "dt", dt, n_heads)?;
        Ok(vec![TensorDesc::f32([alpha.shape[0], 2, n_heads])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [alpha, beta, a, dt] = take(Self::NAME, operands.inputs)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(THREADS),
            params: Params::new()
                .u32("n_items", alpha.n_elems())
                .u32("n_heads", a.n_elems())
                .u32("n", alpha.last())
                .u32("a_off", a.offset)
                .u32("dt_off", dt.offset)
                .rows(Self::NAME, "alpha", alpha)?
                .rows(Self::NAME, "beta", beta)?,
            grid: fold_grid(alpha.n_elems().div_ceil(THREADS as usize), caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 16 * n + 8 * operands.inputs[2].n_elems() as u64,
            flops: 30 * n,
        }
    }

    /// Two exponentials, whose growth the magnitudes carry.
    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::units(12.0, 1, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::delta_gates::delta_gates(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
