//! `quantize_q8`: activations as signed bytes in blocks of 32, for integer products.
//!
//! Per block: `d = max |x| * (1 / 127)`, `q = x / d` rounded half away from zero, `s = (d, d * sum q)`.
//!
//! # Shapes
//! `x`: `[.., n]` f32, `n` a multiple of 32, the last axis contiguous; `q`: `[.., n / 4]` u32, four signed bytes a
//! word, the first element in the lowest byte; `s`: `[.., n / 32, 2]` f32.
//! # Numerics
//! Exact: the code is the largest `c` with `|x| >= (c - 1/2) * d`, the product rounded to f32, so the bits do not
//! depend on how a device divides. NaN counts as 0 and an infinity as the largest finite value. A block whose scale
//! would be subnormal is zero.
//! # Source
//! The activation format of the integer products of GGUF engines, with an f32 scale.

use std::fmt;

use super::{expect_f32, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizeQ8;

/// Elements of a block.
pub const BLOCK: usize = 32;

/// Multiplies the largest magnitude of a block to give its scale.
pub const STEP: f32 = 1.0 / 127.0;

impl QuantizeQ8 {
    /// The one name.
    pub const NAME: &str = "quantize_q8";
}

impl fmt::Display for QuantizeQ8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for QuantizeQ8 {
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
        let n = x.last();
        if x.rank() == 0 || !n.is_multiple_of(BLOCK) {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "rows of whole blocks of 32",
                x,
            ));
        }
        let outer = &x.shape[..x.rank() - 1];
        Ok(vec![
            TensorDesc::new(DType::U32, [outer, &[n / 4]].concat()),
            TensorDesc::f32([outer, &[n / BLOCK, 2]].concat()),
        ])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let blocks = x.n_elems() / BLOCK;
        if blocks == 0 {
            return Ok(Launches::default());
        }
        // Eight lanes a block read whole lines; elsewhere a thread owns a block.
        let (entry, lanes) = if caps.tensor_cores {
            ("quantize_q8_quads", 8)
        } else {
            (Self::NAME, 1)
        };
        Ok(Launches::one(Launch {
            entry,
            spec: Spec::threads(64).import("x", super::matmul::quads_piece(x)),
            params: Params::new()
                .rows(Self::NAME, "x", x)?
                .u32("n_rows", x.rows())
                .u32("n", x.last())
                .f32("step", STEP)
                .f32("smallest", f32::MIN_POSITIVE),
            grid: fold_grid((blocks * lanes).div_ceil(64), caps)?,
            bindings: vec![Binding::Input(0), Binding::Output(0), Binding::Output(1)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 4 * n + n + n / 4,
            flops: 2 * n,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::quantize_q8::quantize_q8(args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
