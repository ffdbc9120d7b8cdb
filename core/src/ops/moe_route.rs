//! `moe_route`: chooses the experts of each token and their weights.
//!
//! From the logits `l` of a row come probabilities `p` by gate:
//!
//! | gate | p |
//! |---|---|
//! | `softmax` | softmax over all experts |
//! | `sigmoid` | `1 / (1 + exp(-l))` |
//! | `sqrt_softplus` | `sqrt(log(1 + exp(l)))` |
//! | `softmax_after` | softmax over the chosen experts only; scores are the logits |
//!
//! The `k` experts of largest score `p + bias` are chosen; the bias takes part in nothing else. With groups of
//! neighbouring experts, a group's score is the sum of its two largest scores, and experts outside the best
//! `groups_used` groups are excluded. A weight is `p`, divided by the sum of the chosen (at least [`LEAST_SUM`]) if
//! `normalize`, times `scale`.
//!
//! # Shapes
//! `logits`: `[n_tokens, n_experts]` f32, the last axis contiguous; `bias`, optional: `[n_experts]` f32;
//! `ids`: `[n_tokens, k]` i32, largest score first; `weights`: `[n_tokens, k]` f32.
//! # Numerics
//! All in f32. Without bias scores are compared as logits, which gates keep in order, so that the choice is exact.
//! Of equals the one with the lower index comes first. An expert whose logit is NaN or below -1e38 comes after all
//! others of its group and weighs 0. A row's bits do not depend on the other rows.
//! # Source
//! Shazeer 2017, arXiv:1701.06538; `sigmoid`, bias and groups: `DeepSeek-V3`, arXiv:2412.19437, section 2.1.2.

use std::fmt;

use super::matmul::NO_TABLE;
use super::{expect_f32, expect_vector};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Most experts: their scores lie in the shared memory of a block.
pub const MAX_EXPERTS: usize = 1024;

/// Most experts of a token.
pub const MAX_K: usize = 32;

/// Most groups.
pub const MAX_GROUPS: usize = 64;

/// Below this the sum of the chosen probabilities counts as this: 2^-14, the smallest normal f16.
pub const LEAST_SUM: f32 = 1.0 / 16_384.0;

/// Logits below this, and NaN, are of experts that nobody wants.
pub const DEAD: f32 = -1e38;

/// How logits become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each.
    Sigmoid,
    /// Root of the softplus of each.
    SqrtSoftplus,
    /// Softmax over the chosen experts.
    SoftmaxAfter,
}

impl Gate {
    /// Every gate.
    pub const ALL: [Self; 4] = [
        Self::Softmax,
        Self::Sigmoid,
        Self::SqrtSoftplus,
        Self::SoftmaxAfter,
    ];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
            Self::SqrtSoftplus => "sqrt_softplus",
            Self::SoftmaxAfter => "softmax_after",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct MoeRoute {
    /// Experts of a token, at most [`MAX_K`].
    pub k: usize,
    /// How logits become probabilities.
    pub gate: Gate,
    /// Groups of neighbouring experts; 1 for none.
    pub groups: usize,
    /// Groups whose experts may be chosen.
    pub groups_used: usize,
    /// Whether the weights of a token sum to `scale`.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: f32,
}

impl MoeRoute {
    /// The one name.
    pub const NAME: &str = "moe_route";
}

impl fmt::Display for MoeRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[k={}, {}", Self::NAME, self.k, self.gate.name())?;
        if self.groups > 1 {
            write!(f, ", groups={}of{}", self.groups_used, self.groups)?;
        }
        if self.normalize {
            f.write_str(", normalize")?;
        }
        if self.scale.to_bits() != 1.0_f32.to_bits() {
            write!(f, ", scale={}", self.scale)?;
        }
        f.write_str("]")
    }
}

/// The logits and the bias, if there is one.
fn operands<'a>(
    inputs: &[&'a TensorDesc],
) -> Result<(&'a TensorDesc, Option<&'a TensorDesc>), OpError> {
    match inputs {
        [logits] => Ok((logits, None)),
        [logits, bias] => Ok((logits, Some(bias))),
        _ => Err(OpError::Count {
            op: MoeRoute::NAME,
            expected: 1,
            found: inputs.len(),
        }),
    }
}

/// Refuses a number outside `1 ..= limit`.
fn expect_count(what: &'static str, value: usize, limit: usize) -> Result<(), OpError> {
    if value == 0 || value > limit {
        return Err(OpError::Limit {
            what,
            needed: value as u64,
            limit: limit as u64,
        });
    }
    Ok(())
}

impl Op for MoeRoute {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let (logits, bias) = operands(inputs)?;
        expect_f32(Self::NAME, "logits", logits)?;
        if logits.rank() != 2 {
            let expected = "[n_tokens, n_experts]";
            return Err(bad_operand(Self::NAME, "logits", expected, logits));
        }
        let [n_tokens, n_experts] = [logits.shape[0], logits.shape[1]];
        expect_count("experts of moe_route (at least 1)", n_experts, MAX_EXPERTS)?;
        expect_count("groups of moe_route (at least 1)", self.groups, MAX_GROUPS)?;
        if !n_experts.is_multiple_of(self.groups) {
            let expected = format!("rows of {} groups", self.groups);
            return Err(bad_operand(Self::NAME, "logits", expected, logits));
        }
        expect_count(
            "used groups of moe_route (at least 1)",
            self.groups_used,
            self.groups,
        )?;
        let eligible = n_experts / self.groups * self.groups_used;
        expect_count("k of moe_route (at least 1)", self.k, MAX_K.min(eligible))?;
        if let Some(bias) = bias {
            expect_vector(Self::NAME, "bias", bias, n_experts)?;
        }
        Ok(vec![
            TensorDesc::i32([n_tokens, self.k]),
            TensorDesc::f32([n_tokens, self.k]),
        ])
    }

    fn launches(&self, operand_descs: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let (logits, bias) = operands(operand_descs.inputs)?;
        let [n_tokens, n_experts] = [logits.shape[0], logits.shape[1]];
        if n_tokens == 0 {
            return Ok(Launches::default());
        }
        let threads = match caps.class {
            // One vector of the CPU. More for many experts: lavapipe ends an invocation's loops after 65,535 turns.
            DeviceClass::Software | DeviceClass::Reference if n_experts <= 512 => 8,
            DeviceClass::Software | DeviceClass::Reference => 32,
            DeviceClass::Integrated | DeviceClass::Discrete => {
                n_experts.next_power_of_two().clamp(32, 256) as u32
            }
        };
        let params = Params::new()
            .u32("n_tokens", n_tokens)
            .u32("n_experts", n_experts)
            .u32("k", self.k)
            .u32("groups", self.groups)
            .u32("groups_used", self.groups_used)
            .u32("has_bias", usize::from(bias.is_some()))
            .u32("normalize", usize::from(self.normalize))
            .f32("scale", self.scale)
            .u32("x_s", logits.strides[0])
            .u32("x_off", logits.offset);
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(threads.min(caps.max_threads_per_block))
                .with("GATE", self.gate as u32)
                .with("LEN", n_experts.next_power_of_two().max(32) as u32),
            params,
            grid: fold_grid(n_tokens, caps)?,
            bindings: vec![
                Binding::Input(0),
                bias.map_or(NO_TABLE, |_| Binding::Input(1)),
                Binding::Output(0),
                Binding::Output(1),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let logits = operands.inputs[0];
        Cost {
            bytes: 4 * logits.n_elems() as u64 + 8 * (logits.rows() * self.k) as u64,
            flops: 4 * logits.n_elems() as u64,
        }
    }

    /// A softmax: exponentials, their sum, and a quotient of sums. Magnitudes carry the part that grows with an
    /// exponent; what a device flushes to zero may meet a division by [`LEAST_SUM`].
    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let n = operands.inputs[0].last().max(1);
        Tolerance {
            alpha: 1e-30,
            ..Tolerance::units(4.0 * (16.0 + (n as f64).log2()), n, 1e-10)
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Rows
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::moe_route::moe_route(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
