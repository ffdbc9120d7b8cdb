//! `copy_rows`: copies rows of a table to other rows of it.
//!
//! `y[moves[i, 1], ..] = y[moves[i, 0], ..]`
//!
//! # Shapes
//! `moves`: i32 `[n_moves, 2]` of (from, to); `y`: `[n_rows, n]` of f32 or i32, updated in place, the last axis
//! contiguous. Whatever consists of whole words is a table of i32: pages of a cache, slots of a state.
//! # Edge cases
//! A move from or to a row outside the table is skipped. The targets of one step are distinct and not sources. Other
//! rows keep every byte.

use std::fmt;

use super::runs::expect_table;
use super::{expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRows;

impl CopyRows {
    /// The one name.
    pub const NAME: &str = "copy_rows";
}

impl fmt::Display for CopyRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl Op for CopyRows {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [moves] = take(Self::NAME, inputs)?;
        let [y] = take(Self::NAME, inouts)?;
        expect_table(Self::NAME, "moves", moves, 2)?;
        if !matches!(y.dtype, DType::F32 | DType::I32) || y.rank() != 2 {
            return Err(bad_operand(Self::NAME, "y", "[n_rows, n] of f32 or i32", y));
        }
        expect_type(Self::NAME, "y", y, y.dtype)?;
        let end = y.offset + y.shape[0] * y.strides[0];
        if end as u64 > u64::from(u32::MAX) {
            return Err(OpError::Limit {
                what: "words of a table",
                needed: end as u64,
                limit: u64::from(u32::MAX),
            });
        }
        Ok(Vec::new())
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [moves] = take(Self::NAME, operands.inputs)?;
        let [y] = take(Self::NAME, operands.inouts)?;
        let threads = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => 32,
            DeviceClass::Integrated | DeviceClass::Discrete => 256.min(caps.max_threads_per_block),
        };
        // A thread moves several words, a block apart, so that rows of megabytes are few blocks.
        let per_thread = 8;
        let chunk = threads as usize * per_thread;
        let n_chunks = y.last().div_ceil(chunk).max(1);
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads),
            params: Params::new()
                .u32("n_blocks", moves.shape[0] * n_chunks)
                .u32("n_chunks", n_chunks)
                .u32("chunk", chunk)
                .u32("n", y.last())
                .u32("n_rows", y.shape[0])
                .u32("y_s", y.strides[0])
                .u32("y_off", y.offset)
                .u32("moves_off", moves.offset),
            grid: fold_grid(moves.shape[0] * n_chunks, caps)?,
            bindings: vec![Binding::Input(0), Binding::Inout(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n_moves = operands.inputs[0].shape[0];
        Cost {
            bytes: (n_moves * (8 * operands.inouts[0].last() + 8)) as u64,
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
        reference::copy_rows::copy_rows(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
