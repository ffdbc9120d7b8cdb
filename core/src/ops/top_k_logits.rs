//! `top_k_logits`: the `k` largest elements of each row with their indices, largest first.
//!
//! # Shapes
//! `x`: `[.., v]` f32, the last axis contiguous, `v` at least `k`; `ids`: `[.., k]` i32; `values`: `[.., k]` f32.
//! # Numerics
//! Exact copies of elements. Of equal elements the one with the lower index comes first; -0 equals +0; NaN is below
//! -inf.
//! # Launches
//! 1. The maximum of each group of neighbouring elements.
//! 2. One block per row: the `k` groups with the largest maxima contain the `k` largest elements, because each of
//!    `k` better groups has an element that beats all of any other group. Both selections are a radix search for the
//!    `k`-th largest, then a copy in index order; at last each element counts those before it.
//!
//! The second launch looks at about `2 * sqrt(v * k)` elements, whatever the values.

use std::fmt;

use super::{expect_f32, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Largest `k`: the selected elements of a row lie in the shared memory of a block.
pub const MAX_K: usize = 1024;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKLogits {
    /// Elements to keep, at most [`MAX_K`].
    pub k: usize,
}

impl TopKLogits {
    /// The one name.
    pub const NAME: &str = "top_k_logits";
}

impl fmt::Display for TopKLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[k={}]", Self::NAME, self.k)
    }
}

/// Elements of a group for rows of `v`: a power of two near `sqrt(v / k)`.
fn group_elems(v: usize, k: usize) -> usize {
    ((v / k.max(1)).isqrt().max(1)).next_power_of_two()
}

impl Op for TopKLogits {
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
        if self.k == 0 || self.k > MAX_K {
            return Err(OpError::Limit {
                what: "k of top_k_logits (at least 1)",
                needed: self.k as u64,
                limit: MAX_K as u64,
            });
        }
        if x.rank() == 0 || x.last() < self.k {
            return Err(bad_operand(
                Self::NAME,
                "x",
                format!("rows of at least {} elements", self.k),
                x,
            ));
        }
        let mut shape = x.shape[..x.rank() - 1].to_vec();
        shape.push(self.k);
        Ok(vec![TensorDesc::i32(shape.clone()), TensorDesc::f32(shape)])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let (n_rows, n) = (x.rows(), x.last());
        let group = group_elems(n, self.k);
        let n_groups = n.div_ceil(group);
        let n_candidates = self.k.min(n_groups) * group;
        let (group_threads, row_threads) = match caps.class {
            // The last step takes k * k / threads turns, and Mesa's software drivers before 23 end a thread's loops
            // after 65,535 turns in all.
            DeviceClass::Software | DeviceClass::Reference => {
                (32, if self.k > 256 { 32 } else { 8 })
            }
            DeviceClass::Integrated | DeviceClass::Discrete => {
                (64, 256.min(caps.max_threads_per_block))
            }
        };
        let n_blocks = n_groups.div_ceil(group_threads as usize);
        let params = Params::new()
            .u32("n_rows", n_rows)
            .u32("n", n)
            .u32("k", self.k)
            .u32("group", group)
            .u32("n_groups", n_groups)
            .u32("n_blocks", n_blocks)
            .u32("n_candidates", n_candidates)
            .rows(Self::NAME, "x", x)?;
        let bindings = vec![
            Binding::Input(0),
            Binding::Scratch(0),
            Binding::Output(0),
            Binding::Output(1),
        ];
        Ok(Launches {
            scratch: vec![4 * n_rows * (n_groups + n_candidates)],
            list: vec![
                Launch {
                    entry: "top_k_logits_groups",
                    spec: Spec::threads(group_threads),
                    params: params.clone(),
                    grid: fold_grid(n_rows * n_blocks, caps)?,
                    bindings: bindings.clone(),
                },
                Launch {
                    entry: Self::NAME,
                    spec: Spec::threads(row_threads),
                    params,
                    grid: fold_grid(n_rows, caps)?,
                    bindings,
                },
            ],
        })
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        Cost {
            bytes: 4 * x.n_elems() as u64 + 8 * (x.rows() * self.k) as u64,
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
        reference::top_k_logits::top_k_logits(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
