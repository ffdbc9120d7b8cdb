//! `argmax`: the index of the largest element of each row.
//!
//! `y[r] = min { i : x[r, i] = max(x[r, ..]) }`
//!
//! # Shapes
//! `x`: `[.., v]` f32, the last axis contiguous, `v` at least 1; `y`: `[..]` i32, the outer axes of `x`.
//! # Numerics
//! Exact. Of equal elements the first wins; -0 equals +0; NaN is below -inf. A row without any element above -inf
//! gives 0.

use std::fmt;

use super::{expect_f32, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argmax;

impl Argmax {
    /// The one name.
    pub const NAME: &str = "argmax";
}

impl fmt::Display for Argmax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for Argmax {
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
        if x.rank() == 0 || x.last() == 0 {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "rows of at least one element",
                x,
            ));
        }
        Ok(vec![TensorDesc::i32(&x.shape[..x.rank() - 1])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        sliced_launches([Self::NAME, "argmax_merge"], x, caps)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        Cost {
            bytes: 4 * (x.n_elems() + x.rows()) as u64,
            flops: x.n_elems() as u64,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::argmax::argmax(args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Two launches that reduce long rows to two words each: one block per slice of a row, then one block per row that
/// merges the slices in order.
///
/// The slices depend on the length of a row and the class of the device only, so the result of a row does not depend
/// on the rows beside it.
pub(crate) fn sliced_launches(
    [reduce, merge]: [&'static str; 2],
    x: &TensorDesc,
    caps: &Caps,
) -> Result<Launches, OpError> {
    let (threads, slice) = match caps.class {
        DeviceClass::Software | DeviceClass::Reference => (8, 8192),
        DeviceClass::Integrated | DeviceClass::Discrete => {
            (256.min(caps.max_threads_per_block), 4096)
        }
    };
    let (n_rows, n) = (x.rows(), x.last());
    let n_slices = n.div_ceil(slice).max(1);
    let params = Params::new()
        .u32("n_rows", n_rows)
        .u32("n", n)
        .u32("slice", slice)
        .u32("n_slices", n_slices)
        .rows(reduce, "x", x)?;
    let bindings = vec![Binding::Input(0), Binding::Scratch(0), Binding::Output(0)];
    Ok(Launches {
        scratch: vec![8 * n_rows * n_slices],
        list: vec![
            Launch {
                entry: reduce,
                spec: Spec::threads(threads),
                params: params.clone(),
                grid: fold_grid(n_rows * n_slices, caps)?,
                bindings: bindings.clone(),
            },
            Launch {
                entry: merge,
                spec: Spec::threads(threads),
                params,
                grid: fold_grid(n_rows, caps)?,
                bindings,
            },
        ],
    })
}
