//! `hadamard`: multiplies each run of `block` elements by the normalised Hadamard matrix.
//!
//! `y[r, b * block + i] = 1 / sqrt(block) * sum_j (-1)^popcount(i & j) x[r, b * block + j]`
//!
//! # Shapes
//! `x`: `[.., n]` f32, the last axis contiguous, `n` a multiple of `block`; `y`: as `x`, contiguous.
//! # Numerics
//! The fast transform: `log2(block)` rounds of sums and differences in f32. The matrix is its own inverse.
//! # Source
//! Sylvester's construction; Tseng et al. 2024, arXiv:2402.04396, for its use before quantisation.

use std::fmt;

use super::{expect_f32, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Largest block: it lies in shared memory.
pub const MAX_BLOCK: usize = 1024;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hadamard {
    /// Elements that are mixed, a power of two from 2 to [`MAX_BLOCK`].
    pub block: usize,
}

impl Hadamard {
    /// The one name.
    pub const NAME: &str = "hadamard";
}

impl fmt::Display for Hadamard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[block={}]", Self::NAME, self.block)
    }
}

impl Op for Hadamard {
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
        if !self.block.is_power_of_two() || !(2..=MAX_BLOCK).contains(&self.block) {
            return Err(OpError::Attribute {
                op: Self::NAME,
                what: "block",
                expected: format!("a power of two from 2 to {MAX_BLOCK}"),
                found: self.block.to_string(),
            });
        }
        if x.rank() == 0 || !x.last().is_multiple_of(self.block) {
            let expected = format!("rows of a multiple of {} elements", self.block);
            return Err(bad_operand(Self::NAME, "x", expected, x));
        }
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let n_blocks = x.n_elems() / self.block;
        let (threads, lanes) = match caps.class {
            // Eight threads are one SIMD thread of a software driver: barriers among them are cheap.
            DeviceClass::Software | DeviceClass::Reference => (8, 8),
            // A warp a run, several runs a block, up to 8 KiB of them.
            DeviceClass::Integrated | DeviceClass::Discrete => {
                let runs = (2048 / self.block).clamp(1, 4) as u32;
                ((32 * runs).min(caps.max_threads_per_block), 32)
            }
        };
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads)
                .with("LANES", lanes)
                .with("BLOCK", self.block as u32),
            params: Params::new()
                .u32("n_blocks", n_blocks)
                .u32("row_blocks", x.last() / self.block)
                .f32("scale", 1.0 / (self.block as f32).sqrt())
                .rows(Self::NAME, "x", x)?,
            grid: fold_grid(n_blocks.div_ceil((threads / lanes) as usize), caps)?,
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n = operands.inputs[0].n_elems() as u64;
        Cost {
            bytes: 8 * n,
            flops: n * (u64::from(self.block.ilog2()) + 1),
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        // One rounding a round on the way of each term, the scale and the last product.
        let rounds = f64::from(self.block.max(1).ilog2());
        Tolerance::units(rounds + 3.0, self.block, 1e-12)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::hadamard::hadamard(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
