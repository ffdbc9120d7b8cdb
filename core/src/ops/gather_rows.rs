//! `gather_rows`: decodes the listed rows of a matrix.
//!
//! `y[t, i] = scale * w[ids[t], i]`
//!
//! # Shapes
//! `w`: `[n_rows, n]`, a weight of any type, or f32 activations `[.., n]`; `ids`: `[n_ids]` i32; `y`: `[n_ids, n]`.
//! An id outside `0 .. n_rows` gives a row of zeros.
//! # Numerics
//! The decoded value with at most two roundings, and one for a scale other than 1.
//! # Source
//! The token embedding; `scale` is the square root of `d_model` in Gemma.

use std::fmt;

use super::matmul::{NO_TABLE, codebook_binding, display, expect_weight, group_stride, tile_piece};
use super::{expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct GatherRows {
    /// Multiplies every element.
    pub scale: f32,
}

impl GatherRows {
    /// The one name.
    pub const NAME: &str = "gather_rows";
}

impl fmt::Display for GatherRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, Self::NAME, self.scale)
    }
}

/// Whether the matrix is an activation, which may lie in the arena.
fn is_activation(w: &TensorDesc) -> bool {
    w.layout == Layout::Rows && w.dtype == DType::F32
}

impl Op for GatherRows {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [w, ids] = take(Self::NAME, inputs)?;
        if !is_activation(w) {
            expect_weight(Self::NAME, w, w.last())?;
        }
        expect_type(Self::NAME, "ids", ids, DType::I32)?;
        if ids.rank() != 1 {
            return Err(bad_operand(Self::NAME, "ids", "of rank 1", ids));
        }
        Ok(vec![TensorDesc::f32([ids.shape[0], w.last()])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [w, ids] = take(Self::NAME, operands.inputs)?;
        let n_ids = ids.shape[0];
        let threads = n_ids * w.last().div_ceil(4);
        if threads == 0 {
            return Ok(Launches::default());
        }
        let spec = Spec::threads(64);
        let grid = fold_grid(threads.div_ceil(64), caps)?;
        let params = |row0: usize, n_rows: usize| {
            Params::new()
                .u32("n_ids", n_ids)
                .u32("ids_off", ids.offset)
                .u32("ids_s", ids.strides[0])
                .u32("n", w.last())
                .u32("n_total", w.rows())
                .u32("row0", row0)
                .u32("n_rows", n_rows)
                .f32("scale", self.scale)
        };
        if is_activation(w) {
            return Ok(Launches::one(Launch {
                entry: Self::NAME,
                spec: spec.import("g", "gather_plain"),
                params: params(0, w.rows()).rows(Self::NAME, "w", w)?,
                grid,
                bindings: vec![
                    Binding::Input(0),
                    NO_TABLE,
                    Binding::Input(1),
                    Binding::Output(0),
                ],
            }));
        }
        if w.layout != Layout::Tile8 {
            return Err(bad_operand(Self::NAME, "w", "in tiles of 8 rows", w));
        }
        let spec = spec
            .import("w", tile_piece(w.dtype))
            .import("g", "gather_tile");
        let mut launches = Launches::default();
        for (window, (row0, n_rows)) in w.windows().into_iter().enumerate() {
            launches.list.push(Launch {
                entry: Self::NAME,
                spec: spec.clone(),
                params: params(row0, n_rows).u32("w_group", group_stride(w)),
                grid,
                bindings: vec![
                    Binding::InputWindow(0, window),
                    codebook_binding(w.dtype),
                    Binding::Input(1),
                    Binding::Output(0),
                ],
            });
        }
        Ok(launches)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let (w, ids) = (operands.inputs[0], operands.inputs[1]);
        let n = ids.n_elems() as f64 * w.last() as f64;
        Cost {
            bytes: (n * (w.dtype.bits_per_elem() / 8.0 + 4.0)) as u64,
            flops: 0,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let scaled = self.scale.to_bits() != 1.0_f32.to_bits();
        let decode = if operands.inputs[0].dtype.is_block() {
            2.0
        } else {
            0.0
        };
        if decode == 0.0 && !scaled {
            return Tolerance::EXACT;
        }
        Tolerance::units(decode + f64::from(u8::from(scaled)), 1, 1e-13)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::gather_rows::gather_rows(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
