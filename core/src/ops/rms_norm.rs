//! `rms_norm`: divides each row by its root mean square, then scales by a learned weight.
//!
//! `y[t, i] = x[t, i] / sqrt(mean(x[t, ..]^2) + eps) * w[t % G, i]`
//!
//! # Shapes
//! `x`: `[.., n]`, the last axis contiguous; `w`: `[n]`, or `[G, n]` with a weight for each of `G`
//! neighbouring rows (the second last axis of `x`); `y`: as `x`, contiguous.
//! # Numerics
//! Accumulates in f32 over `LANES` partial sums. A row of zeros gives zeros even if `eps` is 0.
//! # Source
//! Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.

use std::fmt;

use super::{expect_f32, expect_shape, expect_vector, take};
use crate::error::OpError;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub eps: f32,
}

impl RmsNorm {
    /// The one name.
    pub const NAME: &str = "rms_norm";
}

impl fmt::Display for RmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[eps={}]", Self::NAME, self.eps)
    }
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, w] = take(Self::NAME, inputs)?;
        expect_f32(Self::NAME, "x", x)?;
        if w.rank() == 2 && x.rank() >= 2 {
            expect_f32(Self::NAME, "w", w)?;
            expect_shape(Self::NAME, "w", w, &x.shape[x.rank() - 2..])?;
        } else {
            expect_vector(Self::NAME, "w", w, x.last())?;
        }
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, w] = take(Self::NAME, operands.inputs)?;
        let (spec, grid) = row_geometry(x.rows(), x.last(), caps)?;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec,
            params: Params::new()
                .u32("n_rows", x.rows())
                .u32("n", x.last())
                .u32("n_groups", w.rows())
                .f32("eps", self.eps)
                .rows(Self::NAME, "x", x)?,
            grid,
            bindings: vec![Binding::Input(0), Binding::Input(1), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n + 4 * operands.inputs[1].n_elems() as u64,
            flops: 4 * n,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        norm_tolerance(operands.inputs[0].last())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::rms_norm::rms_norm(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Threads of a block, the `LANES` of them that share a row, and the grid over `n_rows` rows of `n` elements.
pub(crate) fn row_geometry(
    n_rows: usize,
    n: usize,
    caps: &Caps,
) -> Result<(Spec, [u32; 3]), OpError> {
    let (threads, lanes) = match caps.class {
        // Eight threads are one SIMD thread of a software driver: barriers among them are cheap.
        DeviceClass::Software | DeviceClass::Reference => (8, 8),
        DeviceClass::Integrated | DeviceClass::Discrete => {
            // Head-sized rows come in large numbers: a warp each. Long rows are few, in decode one alone, and wait for
            // memory: a block each, with a load of four elements a thread under way. The number of rows must not count,
            // or the rows of a batch would be summed in another order than each by itself.
            let wanted = (n / 4).clamp(256, 1024) as u32;
            let threads = 1 << wanted.min(caps.max_threads_per_block).max(1).ilog2();
            (threads, if n <= 512 { 32 } else { threads })
        }
    };
    let rows_per_block = (threads / lanes) as usize;
    Ok((
        Spec::threads(threads).with("LANES", lanes),
        fold_grid(n_rows.div_ceil(rows_per_block), caps)?,
    ))
}

/// Blocked sum of `n` squares, a reciprocal root and two products.
pub(crate) fn norm_tolerance(n: usize) -> Tolerance {
    let n_f64 = n.max(1) as f64;
    Tolerance::units(12.0 + n_f64.log2() + n_f64.sqrt() / 8.0, n, 1e-12)
}
