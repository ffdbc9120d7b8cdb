//! `softmax_stats`: the largest element of each row and the sum of its exponentials.
//!
//! `y[r] = (max, sum_i exp(x[r, i] - max))`, so that `log p_i = x_i - max - log(sum)`.
//!
//! # Shapes
//! `x`: `[.., v]` f32, the last axis contiguous; `y`: `[.., 2]` f32.
//! # Numerics
//! One pass with a running maximum; slices of a row merge in order. A row without any element above -inf gives
//! (-inf, 0).
//! # Source
//! Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.

use std::fmt;

use super::argmax::sliced_launches;
use super::{expect_f32, take};
use crate::error::{OpError, bad_operand};
use crate::op::{Caps, Cost, Launches, Op, Operands, Sharding, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftmaxStats;

impl SoftmaxStats {
    /// The one name.
    pub const NAME: &str = "softmax_stats";
}

impl fmt::Display for SoftmaxStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for SoftmaxStats {
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
        if x.rank() == 0 {
            return Err(bad_operand(Self::NAME, "x", "of at least one axis", x));
        }
        let mut shape = x.shape[..x.rank() - 1].to_vec();
        shape.push(2);
        Ok(vec![TensorDesc::f32(shape)])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        sliced_launches([Self::NAME, "softmax_stats_merge"], x, caps)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        Cost {
            bytes: 4 * x.n_elems() as u64 + 8 * x.rows() as u64,
            flops: 4 * x.n_elems() as u64,
        }
    }

    /// A blocked sum of exponentials. The magnitude is 0 for the maximum, which is exact, and carries the part of the
    /// sum's bound that grows with the distance from the maximum.
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let n = operands.inputs[0].last();
        let n_f64 = n.max(1) as f64;
        Tolerance::units(8.0 + n_f64.log2() + n_f64.sqrt() / 8.0, n, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::softmax_stats::softmax_stats(args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
