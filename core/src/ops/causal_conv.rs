//! `causal_conv`: a short convolution along the tokens of each sequence, channel by channel, that remembers its past.
//!
//! `y[t, c] = act(sum_k w[c, k] * z[p - (n_taps - 1 - k) * dilation, c])` with `z[p]` the input at position `p` of the
//! sequence: a row of `x` if it is in this step, else what `ring` kept, and 0 before the first position.
//!
//! # Shapes
//! `x`: f32 `[n_tokens, n_channels]`, the last axis contiguous; `w`: f32 `[n_channels, n_taps]`; `runs`: i32
//! `[n_runs, 4]` of (slot, first row, rows, position), in the order of their rows; `ring`: f32
//! `[n_slots, depth, n_channels]`, updated in place; `y`: as `x`, contiguous.
//! # State
//! The ring holds raw inputs: that of position `p` in row `p % depth`. With `depth = history + m` rows,
//! `history = (n_taps - 1) * dilation`, a sequence can go back by up to `m` tokens by merely continuing at the earlier
//! position. A run that begins at position 0 reads no history, so a slot needs no clearing.
//! # Numerics
//! The taps are summed in order in f32. The ring is f32.
//! # Edge cases
//! Rows that belong to no run, or to a run of a slot that does not exist, give zeros.
//! # Source
//! Dauphin et al. 2017, arXiv:1612.08083, section 2; Gu and Dao 2023, arXiv:2312.00752, figure 3.

use std::fmt;

use super::runs::{expect_runs, expect_state};
use super::{expect_f32, expect_shape, take};
use crate::error::{OpError, bad_operand};
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalConv {
    /// Tokens between taps.
    pub dilation: usize,
    /// Whether `y = x * sigmoid(x)` follows.
    pub silu: bool,
}

impl CausalConv {
    /// The one name.
    pub const NAME: &str = "causal_conv";

    /// Rows of the past that a token needs.
    pub fn history(&self, n_taps: usize) -> usize {
        n_taps.saturating_sub(1) * self.dilation
    }
}

impl fmt::Display for CausalConv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let act = if self.silu { "silu" } else { "none" };
        write!(f, "{}[{act}, dilation={}]", Self::NAME, self.dilation)
    }
}

impl Op for CausalConv {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x, w, runs] = take(Self::NAME, inputs)?;
        let [ring] = take(Self::NAME, inouts)?;
        expect_f32(Self::NAME, "x", x)?;
        if x.rank() != 2 {
            return Err(bad_operand(Self::NAME, "x", "[n_tokens, n_channels]", x));
        }
        expect_f32(Self::NAME, "w", w)?;
        expect_shape(Self::NAME, "w", w, &[x.last(), w.last()])?;
        if !w.is_contiguous() || w.last() == 0 {
            return Err(bad_operand(Self::NAME, "w", "contiguous, with a tap", w));
        }
        expect_runs(Self::NAME, runs)?;
        expect_state(Self::NAME, "ring", ring, 3)?;
        let history = self.history(w.last());
        if ring.last() != x.last() || ring.shape[1] < history.max(1) {
            let expected = format!("[n_slots, {history} or more, {}]", x.last());
            return Err(bad_operand(Self::NAME, "ring", expected, ring));
        }
        Ok(vec![TensorDesc::f32(x.shape.clone())])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x, w, runs] = take(Self::NAME, operands.inputs)?;
        let [ring] = take(Self::NAME, operands.inouts)?;
        let threads = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => 32,
            DeviceClass::Integrated | DeviceClass::Discrete => 256.min(caps.max_threads_per_block),
        };
        let (n_tokens, n_channels) = (x.shape[0], x.last());
        let depth = ring.shape[1];
        // While the rows that are read and those that are written differ, one launch does both.
        let at_once = n_tokens + self.history(w.last()) <= depth;
        let n_items = n_tokens * n_channels;
        let grid = fold_grid(n_items.div_ceil(threads as usize), caps)?;
        let params = || {
            Params::new()
                .u32("n_items", n_items)
                .u32("n_channels", n_channels)
                .u32("n_tokens", n_tokens)
                .u32("n_taps", w.last())
                .u32("dilation", self.dilation)
                .u32("n_runs", runs.shape[0])
                .u32("n_slots", ring.shape[0])
                .u32("depth", depth)
                .u32("x_s", x.strides[0])
                .u32("x_off", x.offset)
                .u32("w_off", w.offset)
                .u32("runs_off", runs.offset)
        };
        let launch = |entry| Launch {
            entry,
            spec: Spec::threads(threads)
                .flag("SILU", self.silu)
                .flag("KEEP", at_once),
            params: params(),
            grid,
            bindings: vec![
                Binding::Input(0),
                Binding::Input(1),
                Binding::Input(2),
                Binding::Inout(0),
                Binding::Output(0),
            ],
        };
        let mut list = vec![launch(Self::NAME)];
        if !at_once {
            list.push(launch("causal_conv_keep"));
        }
        Ok(Launches {
            scratch: Vec::new(),
            list,
        })
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let (x, w) = (operands.inputs[0], operands.inputs[1]);
        let (n, taps) = (x.n_elems() as u64, w.last() as u64);
        Cost {
            // Input and output; the weights; the history of each run, once; what is kept.
            bytes: 8 * n
                + 4 * w.n_elems() as u64
                + 4 * (operands.inputs[2].rows() * self.history(w.last()) * x.last()) as u64
                + 4 * n.min((operands.inouts[0].shape[1] * x.last()) as u64),
            flops: n * (2 * taps + if self.silu { 5 } else { 0 }),
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let taps = operands.inputs[1].last();
        // A sum of products in order; the magnitudes carry what the exponential of silu adds.
        Tolerance::units(8.0 + taps as f64, taps, 1e-11)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::causal_conv::causal_conv(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
