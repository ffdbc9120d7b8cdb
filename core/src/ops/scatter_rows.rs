//! `scatter_rows`: copies rows to listed places of a table.
//!
//! `y[idx[t], ..] = x[t, ..]`
//!
//! # Shapes
//! `x`: `[n_tokens, n]` of f32 or i32; `idx`: i32 `[n_tokens]`; `y`: `[n_rows, n]` of the same type. The last axes are
//! contiguous.
//! # Edge cases
//! An index of -1 or outside the table is skipped. The indices of one step are distinct. Other rows keep every byte.

use std::fmt;

use super::kv_write::expect_indices;
use super::{expect_shape, expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

const THREADS: u32 = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct ScatterRows;

impl ScatterRows {
    /// The one name.
    pub const NAME: &str = "scatter_rows";
}

impl fmt::Display for ScatterRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for ScatterRows {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, idx] = take(Self::NAME, inputs)?;
        let [y] = take(Self::NAME, inouts)?;
        if !matches!(x.dtype, DType::F32 | DType::I32) || x.rank() != 2 {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "[n_tokens, n] of f32 or i32",
                x,
            ));
        }
        expect_type(Self::NAME, "x", x, x.dtype)?;
        expect_indices(Self::NAME, "idx", idx, x.shape[0])?;
        expect_type(Self::NAME, "y", y, x.dtype)?;
        let n_rows = y.shape.first().copied().unwrap_or(0);
        expect_shape(Self::NAME, "y", y, &[n_rows, x.last()])?;
        Ok(Vec::new())
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, idx] = take(Self::NAME, operands.inputs)?;
        let [y] = take(Self::NAME, operands.inouts)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(THREADS),
            params: Params::new()
                .u32("n_items", x.n_elems())
                .u32("n", x.last())
                .u32("n_rows", y.shape[0])
                .u32("x_s", x.strides[0])
                .u32("x_off", x.offset)
                .u32("y_s", y.strides[0])
                .u32("y_off", y.offset)
                .u32("idx_off", idx.offset),
            grid: fold_grid(x.n_elems().div_ceil(THREADS as usize), caps)?,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Inout(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        Cost {
            bytes: (8 * x.n_elems() + 4 * x.rows()) as u64,
            flops: 0,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::scatter_rows::scatter_rows(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
