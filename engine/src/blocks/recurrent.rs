//! The two kinds of layer of hybrid models: the gated delta net, and attention with a gate on its output.

use gemel_core::DType;
use gemel_core::error::GraphError;
use gemel_core::graph::{Tensor, ValueId};
use gemel_core::ops::{
    causal_conv::CausalConv,
    delta_gates::DeltaGates,
    delta_rule_chunk::DeltaRuleChunk,
    delta_rule_step::{DeltaRuleStep, HeadMap},
    gated_rms_norm::{GateKind, GatedRmsNorm},
    glu::{Glu, GluKind},
};

use super::{AttentionShape, BlockIndexer, StepGraph, input};
use crate::rope::RopeConfig;
use crate::state::{DeltaSizes, N_RECORDED};
use crate::weights::{Linear, WeightId};

/// A gated delta net: weights and sizes of one layer.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// Sizes.
    pub sizes: DeltaSizes,
    /// Which key head a value head reads.
    pub map: HeadMap,
    /// Activation of the gate of the output.
    pub gate: GateKind,
    /// Added to squared lengths and mean squares.
    pub eps: f32,
    /// What makes queries, keys, values and the gate of the output.
    pub qkvz: Qkvz,
    /// What makes strengths and decays.
    pub gates: Gates,
    /// Taps of the convolution, `[n_channels, n_taps]`.
    pub conv: WeightId,
    /// Taps of each channel.
    pub n_taps: usize,
    /// `-exp(A_log)`, `[n_v_heads]`.
    pub a: WeightId,
    /// Bias of the decays, `[n_v_heads]`.
    pub dt: WeightId,
    /// Weight of the output norm, `[v_dim]`.
    pub norm: WeightId,
    /// From heads back to the residual stream.
    pub output: Linear,
}

/// The large projections of a delta net.
#[derive(Clone, Debug)]
pub enum Qkvz {
    /// Queries, keys and values in one matrix, the gate in another.
    Split {
        /// Queries, keys, values.
        qkv: Linear,
        /// Gate.
        z: Linear,
    },
    /// The rows of both.
    Fused(Linear),
}

/// The small projections of a delta net.
#[derive(Clone, Debug)]
pub enum Gates {
    /// A matrix for each.
    Split {
        /// Strengths.
        beta: Linear,
        /// Decays.
        alpha: Linear,
    },
    /// The rows of all strengths, then those of all decays.
    Stacked(Linear),
    /// For each key head the strengths, then the decays, of its value heads.
    Grouped(Linear),
}

impl DeltaNet {
    /// Channels of the convolution: queries, keys, values.
    pub fn n_channels(&self) -> usize {
        self.sizes.n_channels()
    }
}

/// The projections of an attention layer with an output gate: queries and gate alternate head by head.
#[derive(Clone, Debug)]
pub enum GatedQkv {
    /// Three matrices.
    Split {
        /// Queries and gate, `2 * n_heads * k_dim` rows.
        q: Linear,
        /// Keys.
        k: Linear,
        /// Values.
        v: Linear,
    },
    /// One matrix with the rows of all three.
    Fused(Linear),
}

/// An attention layer with an output gate.
#[derive(Clone, Debug)]
pub struct GatedAttention {
    /// Projections.
    pub qkv: GatedQkv,
    /// Norms of queries and keys, `[k_dim]` each.
    pub qk_norm: [WeightId; 2],
    /// Selects what is attended to; `None`: everything is.
    pub indexer: Option<BlockIndexer>,
    /// From heads back to the residual stream.
    pub output: Linear,
}

impl StepGraph<'_> {
    /// What the recurrent layers commit. i32 `[n_runs, 2]`, see [`input::COMMITS`].
    fn commits(&mut self) -> ValueId {
        let n_runs = self.shape.n_tokens.min(self.memory.config().n_seqs);
        let graph = &mut self.graph;
        *self
            .commits
            .get_or_insert_with(|| graph.step_input(input::COMMITS, DType::I32, [n_runs, 2]))
    }

    /// The projections `[q | k | v]` and `z`. `[n_tokens, n_channels]`, `[n_tokens, n_v_heads, v_dim]`
    fn qkvz(&mut self, net: &DeltaNet, x: ValueId) -> Result<[ValueId; 2], GraphError> {
        let n_channels = net.n_channels();
        let (n_v_heads, v_dim) = (net.sizes.n_v_heads, net.sizes.v_dim);
        let [qkv, z] = match &net.qkvz {
            Qkvz::Split { qkv, z } => [self.linear(qkv, x)?, self.linear(z, x)?],
            Qkvz::Fused(linear) => {
                let all = self.linear(linear, x)?;
                [
                    self.graph.narrow(all, 1, 0, n_channels)?,
                    self.graph.narrow(all, 1, n_channels, n_v_heads * v_dim)?,
                ]
            }
        };
        let z = self
            .graph
            .reshape(z, [self.shape.n_tokens, n_v_heads, v_dim])?;
        Ok([qkv, z])
    }

    /// Logarithms of decays and strengths. `[n_tokens, 2, n_v_heads]`
    fn delta_gates(
        &mut self,
        label: &str,
        net: &DeltaNet,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let DeltaSizes {
            n_k_heads,
            n_v_heads,
            ..
        } = net.sizes;
        let [alpha, beta] = match &net.gates {
            Gates::Split { beta, alpha } => [self.linear(alpha, x)?, self.linear(beta, x)?],
            Gates::Stacked(linear) => {
                let both = self.linear(linear, x)?;
                [
                    self.graph.narrow(both, 1, n_v_heads, n_v_heads)?,
                    self.graph.narrow(both, 1, 0, n_v_heads)?,
                ]
            }
            Gates::Grouped(linear) => {
                let ratio = n_v_heads / n_k_heads;
                let both = self.linear(linear, x)?;
                let both = self
                    .graph
                    .reshape(both, [self.shape.n_tokens, n_k_heads, 2 * ratio])?;
                [
                    self.graph.narrow(both, 2, ratio, ratio)?,
                    self.graph.narrow(both, 2, 0, ratio)?,
                ]
            }
        };
        let (a, dt) = (self.weight("ssm_a", net.a), self.weight("ssm_dt", net.dt));
        self.graph.apply(label, DeltaGates, &[alpha, beta, a, dt])
    }

    /// A gated delta net over normalised rows. `(index, layer)`: its place among the recurrent layers and among all.
    /// `[n_tokens, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn delta_net(
        &mut self,
        (index, layer): (usize, usize),
        net: &DeltaNet,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let label = |what: &str| format!("blk.{layer}.{what}");
        let memory = self.memory.states().layer(index).clone();
        let (runs, commits) = (self.runs(), self.commits());
        let [qkv, z] = self.qkvz(net, x)?;
        let gates = self.delta_gates(&label("ssm_gates"), net, x)?;
        let taps = self.weight("ssm_conv1d", net.conv);
        let taps = self.graph.reshape(taps, [net.n_channels(), net.n_taps])?;
        let ring = self.graph.bind(label("ssm_conv_state"), &memory.ring);
        let conv = CausalConv {
            dilation: 1,
            silu: true,
        };
        let qkv = self
            .graph
            .apply_multi(label("ssm_conv"), conv, &[qkv, taps, runs], &[ring])?[0];
        let mut inouts = Vec::new();
        for (tensor, what) in memory
            .delta
            .iter()
            .flatten()
            .zip(["ssm_state", "ssm_record"])
        {
            inouts.push(self.graph.bind(label(what), tensor));
        }
        let rule = DeltaRuleStep {
            n_k_heads: net.sizes.n_k_heads,
            map: net.map,
            scale: 1.0 / (net.sizes.k_dim as f32).sqrt(),
            l2_eps: Some(net.eps),
        };
        let inputs = [qkv, gates, runs, commits];
        let delta = label("ssm_delta");
        // A step of at most as many tokens as are recorded may be a draft, whose bits are those of single steps.
        let o = if self.shape.n_tokens > N_RECORDED {
            let rule = DeltaRuleChunk { rule };
            self.graph.apply_multi(delta, rule, &inputs, &inouts)?[0]
        } else {
            self.graph.apply_multi(delta, rule, &inputs, &inouts)?[0]
        };
        let norm = self.weight(&label("ssm_norm"), net.norm);
        let gated = GatedRmsNorm {
            eps: net.eps,
            gate: net.gate,
        };
        let o = self.graph.apply(label("ssm_norm"), gated, &[o, z, norm])?;
        let width = net.sizes.n_v_heads * net.sizes.v_dim;
        let o = self.graph.reshape(o, [self.shape.n_tokens, width])?;
        self.linear(&net.output, o)
    }

    /// Attention over normalised rows, its output times the sigmoid of a gate. `(index, layer)`: its place among the
    /// layers that cache keys and among all. `[n_tokens, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn gated_attention(
        &mut self,
        (index, layer): (usize, usize),
        attention: &GatedAttention,
        at: &AttentionShape,
        rope: (&RopeConfig, &Tensor),
        eps: f32,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let label = |what: &str| format!("blk.{layer}.{what}");
        let n = self.shape.n_tokens;
        let (n_heads, n_kv_heads, dim) = (at.n_heads, at.n_kv_heads, at.k_dim);
        let [q, k, v] = match &attention.qkv {
            GatedQkv::Split { q, k, v } => {
                [self.linear(q, x)?, self.linear(k, x)?, self.linear(v, x)?]
            }
            GatedQkv::Fused(linear) => {
                let all = self.linear(linear, x)?;
                let (q, kv) = (2 * n_heads * dim, n_kv_heads * dim);
                [
                    self.graph.narrow(all, 1, 0, q)?,
                    self.graph.narrow(all, 1, q, kv)?,
                    self.graph.narrow(all, 1, q + kv, kv)?,
                ]
            }
        };
        let q = self.graph.reshape(q, [n, n_heads, 2 * dim])?;
        let gate = self.graph.narrow(q, 2, dim, dim)?;
        let q = self.graph.narrow(q, 2, 0, dim)?;
        let k = self.graph.reshape(k, [n, n_kv_heads, dim])?;
        let v = self.graph.reshape(v, [n, n_kv_heads, dim])?;
        let [q_norm, k_norm] = attention.qk_norm;
        let q = self.rms_norm(&label("attn_q_norm"), q, q_norm, eps)?;
        let k = self.rms_norm(&label("attn_k_norm"), k, k_norm, eps)?;
        let q = self.rope(&label("q_rope"), q, rope.0, rope.1)?;
        let k = self.rope(&label("k_rope"), k, rope.0, rope.1)?;
        let o = match &attention.indexer {
            None => self.attend_in(index, layer, at, [q, k, v])?,
            Some(indexer) => {
                let indexer = self.block_indexer(layer, indexer, rope, eps, x)?;
                self.attend_sparse(index, layer, at, [q, k, v], &indexer)?
            }
        };
        let o = self.graph.reshape(o, [n, n_heads, dim])?;
        let sigmoid = Glu {
            kind: GluKind::Sigmoid,
        };
        let o = self.graph.apply(label("attn_gate"), sigmoid, &[gate, o])?;
        let o = self.graph.reshape(o, [n, n_heads * dim])?;
        self.linear(&attention.output, o)
    }
}
