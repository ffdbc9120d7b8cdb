//! `delta_rule_step`: the gated delta rule, token by token: each head of a sequence reads and updates a matrix `S`.
//!
//! For each token, with `k`, `q` of the value head's key head, `g`, `beta` from the gates:
//! `S <- e^g S`, `u = beta * (v - S k)`, `S <- S + u k^T`, `y = scale * S q`
//!
//! # Shapes
//! `qkv`: f32 `[n_tokens, 2 * n_k_heads * k_dim + n_v_heads * v_dim]`, all queries, all keys, all values, the last axis
//! contiguous; `gates`: f32 `[n_tokens, 2, n_v_heads]` of (g, beta); `runs`: i32 `[n_runs, 4]` of (slot, first row, rows,
//! position), without gaps from row 0; `commits`: i32 `[n_runs, 2]`, see below. In place: `state`: f32
//! `[n_slots, n_v_heads, v_dim, k_dim]`; `record`: f32 `[n_slots, 2, m, n_k_heads * k_dim + n_v_heads * v_dim + n_v_heads]`.
//! Output: f32 `[n_tokens, n_v_heads, v_dim]`.
//! # State
//! A slot holds `S` as of some token, and a record of the at most `m` tokens since: normalised keys, `u` and `g`. A run
//! first applies the record's first `commits[r, 0]` tokens, which lie in half `commits[r, 1]` of it, stores `S`, and
//! records its own last `min(rows, m)` tokens in the other half. So a sequence goes back by up to `m` tokens by a
//! smaller number in `commits`, and plain decode reads and writes `S` once. A run that begins at position 0 takes `S`
//! to be zero, so a slot needs no clearing. A run longer than `m` stores `S` as of its last token but `m`.
//! # Numerics
//! `S` is f32 and decays before it predicts. With `l2_eps`, q and k are first divided by `sqrt(sum(x^2) + l2_eps)`. The
//! update of a recorded token is the arithmetic of a new one, so that m tokens in one run give the bits of m runs.
//! # Edge cases
//! `g` below -87 resets the state exactly. Rows of no run, or of a slot that does not exist, give zeros.
//! # Source
//! Yang et al. 2024, arXiv:2412.06464, equation 10.

use std::fmt;

use super::runs::{expect_runs, expect_state, expect_table};
use super::{expect_f32, expect_shape, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// Value head `h` reads key head `h % n_k_heads`.
    Tiled,
    /// Value head `h` reads key head `h / (n_v_heads / n_k_heads)`.
    Grouped,
}

impl HeadMap {
    /// The lower-case word used in printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiled => "tiled",
            Self::Grouped => "grouped",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaRuleStep {
    /// Query and key heads.
    pub n_k_heads: usize,
    /// Which of them a value head reads.
    pub map: HeadMap,
    /// Factor of the outputs.
    pub scale: f32,
    /// Added to the squared lengths by which q and k are divided; `None` to take them as they are.
    pub l2_eps: Option<f32>,
}

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) n_tokens: usize,
    pub(crate) n_slots: usize,
    pub(crate) n_k_heads: usize,
    pub(crate) n_v_heads: usize,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// Most recorded tokens.
    pub(crate) n_recorded: usize,
}

impl Sizes {
    /// The key head of a value head.
    pub(crate) fn key_head(&self, map: HeadMap, head: usize) -> usize {
        match map {
            HeadMap::Tiled => head % self.n_k_heads,
            HeadMap::Grouped => head / (self.n_v_heads / self.n_k_heads),
        }
    }

    /// Elements of the record of one token: keys, u, g.
    pub(crate) fn record_len(&self) -> usize {
        self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim + self.n_v_heads
    }
}

impl DeltaRuleStep {
    /// The one name.
    pub const NAME: &str = "delta_rule_step";

    /// Checks the operands against each other.
    pub(crate) fn sizes(
        &self,
        op: &'static str,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Sizes, OpError> {
        let [qkv, gates, runs, commits] = take(op, inputs)?;
        let [state, record] = take(op, inouts)?;
        expect_state(op, "state", state, 4)?;
        expect_state(op, "record", record, 4)?;
        let [n_slots, n_v_heads, v_dim, k_dim] = state.shape[..] else {
            return Err(bad_operand(op, "state", "of four axes", state));
        };
        if self.n_k_heads == 0 || !n_v_heads.is_multiple_of(self.n_k_heads) {
            let expected = format!("of a multiple of {} heads", self.n_k_heads);
            return Err(bad_operand(op, "state", expected, state));
        }
        let sizes = Sizes {
            n_tokens: qkv.shape.first().copied().unwrap_or(0),
            n_slots,
            n_k_heads: self.n_k_heads,
            n_v_heads,
            k_dim,
            v_dim,
            n_recorded: record.shape[2],
        };
        expect_f32(op, "qkv", qkv)?;
        let width = 2 * self.n_k_heads * k_dim + n_v_heads * v_dim;
        expect_shape(op, "qkv", qkv, &[sizes.n_tokens, width])?;
        expect_f32(op, "gates", gates)?;
        expect_shape(op, "gates", gates, &[sizes.n_tokens, 2, n_v_heads])?;
        if !gates.is_contiguous() {
            return Err(bad_operand(op, "gates", "contiguous", gates));
        }
        expect_runs(op, runs)?;
        expect_table(op, "commits", commits, 2)?;
        expect_shape(op, "commits", commits, &[runs.shape[0], 2])?;
        let m = sizes.n_recorded;
        expect_shape(op, "record", record, &[n_slots, 2, m, sizes.record_len()])?;
        Ok(sizes)
    }
}

/// The launch that goes token by token, as far as it does not depend on the step.
pub(crate) struct ByToken {
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Constants.
    pub(crate) spec: Spec,
    /// Blocks of a head of a run.
    pub(crate) n_columns: usize,
}

impl DeltaRuleStep {
    /// Geometry of the kernels in `lib/delta_rule`.
    ///
    /// # Errors
    /// If a row of the state does not fit in shared memory.
    pub(crate) fn by_token(&self, sizes: &Sizes, caps: &Caps) -> Result<ByToken, OpError> {
        // LANES threads share an output channel; each keeps its part of the channel's row of S in shared memory or
        // registers. Few lanes, because a token costs a reduction over them: with a warp a channel, shuffles would
        // take several times as long as the arithmetic.
        let lanes = 8;
        let (mut threads, least) = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => (8, 8),
            DeviceClass::Integrated | DeviceClass::Discrete => {
                (128.min(caps.max_threads_per_block), 32)
            }
        };
        let per_lane = sizes.k_dim.div_ceil(lanes as usize).max(1) as u32;
        let shared = |threads: u32| threads * (per_lane + 5) * 4;
        while threads > least && shared(threads) > caps.max_shared_bytes.min(16 * 1024) {
            threads /= 2;
        }
        if shared(threads) > caps.max_shared_bytes {
            return Err(OpError::Limit {
                what: "bytes of shared memory for a row of the state",
                needed: u64::from(shared(threads)),
                limit: u64::from(caps.max_shared_bytes),
            });
        }
        Ok(ByToken {
            threads,
            spec: Spec::threads(threads)
                .with("LANES", lanes)
                .with("PER_LANE", per_lane)
                .flag("TILED", self.map == HeadMap::Tiled)
                .flag("NORMED", self.l2_eps.is_some()),
            n_columns: sizes.v_dim.div_ceil((threads / lanes) as usize),
        })
    }

    /// Sizes, factors and where the operands lie.
    pub(crate) fn params(
        &self,
        sizes: &Sizes,
        [qkv, gates, runs, commits]: [&TensorDesc; 4],
    ) -> Params {
        Params::new()
            .u32("n_tokens", sizes.n_tokens)
            .u32("n_runs", runs.shape[0])
            .u32("n_slots", sizes.n_slots)
            .u32("n_k_heads", sizes.n_k_heads)
            .u32("n_v_heads", sizes.n_v_heads)
            .u32("k_dim", sizes.k_dim)
            .u32("v_dim", sizes.v_dim)
            .u32("n_recorded", sizes.n_recorded)
            .u32("record_len", sizes.record_len())
            .f32("scale", self.scale)
            .f32("l2_eps", self.l2_eps.unwrap_or(0.0))
            .u32("qkv_s", qkv.strides[0])
            .u32("qkv_off", qkv.offset)
            .u32("gates_off", gates.offset)
            .u32("runs_off", runs.offset)
            .u32("commits_off", commits.offset)
    }
}

impl fmt::Display for DeltaRuleStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[{}, n_k_heads={}]",
            Self::NAME,
            self.map.name(),
            self.n_k_heads
        )
    }
}

impl Op for DeltaRuleStep {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let sizes = self.sizes(Self::NAME, inputs, inouts)?;
        Ok(vec![TensorDesc::f32([
            sizes.n_tokens,
            sizes.n_v_heads,
            sizes.v_dim,
        ])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let sizes = self.sizes(Self::NAME, operands.inputs, operands.inouts)?;
        let [qkv, gates, runs, commits] = take(Self::NAME, operands.inputs)?;
        let by_token = self.by_token(&sizes, caps)?;
        let n_runs = runs.shape[0];
        let n_blocks = n_runs * sizes.n_v_heads * by_token.n_columns;
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: by_token.spec,
            params: Params::new()
                .u32("n_blocks", n_blocks)
                .u32("n_columns", by_token.n_columns)
                .and(&self.params(&sizes, [qkv, gates, runs, commits])),
            grid: fold_grid(n_blocks, caps)?,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Input(3),
                Binding::Inout(0),
                Binding::Inout(1),
                Binding::Output(0),
            ],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        delta_cost(operands)
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        delta_tolerance(operands.inouts[0].last())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::delta_rule_step::delta_rule_step(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// One read and one write of the state of each sequence, the activations once, 7 operations per element and token.
pub(crate) fn delta_cost(operands: Operands<'_>) -> Cost {
    let (qkv, runs, state) = (operands.inputs[0], operands.inputs[2], operands.inouts[0]);
    let per_slot = (state.n_elems() / state.shape[0].max(1)) as u64;
    let activations = qkv.n_elems() + operands.inputs[1].n_elems() + operands.outputs[0].n_elems();
    Cost {
        bytes: 8 * per_slot * runs.shape[0] as u64 + 4 * activations as u64,
        flops: 7 * per_slot * qkv.shape[0] as u64,
    }
}

/// A dot product over `k_dim` and a handful of roundings for each token; the magnitudes carry how errors of earlier
/// tokens decay or stay (an update with a normalised key never enlarges them).
pub(crate) fn delta_tolerance(k_dim: usize) -> Tolerance {
    let n = k_dim.max(1) as f64;
    Tolerance::units(8.0 + n.log2() + n.sqrt() / 2.0, k_dim, 1e-9)
}
