//! Decoders of latent attention to selected tokens: `deepseek32` and `glm-dsa`.

use super::outline::Outline;
use super::sizes::experts;
use crate::gguf::{Array, Value};

/// A decoder of latent attention.
#[derive(Clone, Copy)]
pub(super) struct Latent {
    n_layers: usize,
    /// Layers with a dense FFN, the first.
    n_dense: usize,
    d_model: usize,
    n_heads: usize,
    /// Channels between the projections of queries, and of the latent.
    ranks: [usize; 2],
    /// Unrotated and rotated channels of a query head, channels of its result.
    head: [usize; 3],
    /// Heads of an indexer, their channels, tokens that it selects.
    index: [usize; 3],
    /// Which layers have an indexer: all, or the first two and then one of so many.
    reuse: Option<usize>,
    d_ff: usize,
    /// Experts, experts of a token, their width.
    experts: [usize; 3],
    /// Groups of experts and groups of a token, and the factor of the experts' sum.
    groups: [usize; 2],
    scale: f32,
    n_vocab: usize,
    n_ctx: usize,
    rope_theta: f32,
    /// How much longer than the first context the model's is, and that context.
    yarn: Option<(f32, usize)>,
    eps: f32,
}

/// A dense layer and two of experts, each of which selects.
pub(super) const TINY: Latent = Latent {
    n_layers: 3,
    n_dense: 1,
    d_model: 256,
    n_heads: 4,
    ranks: [256, 256],
    head: [256, 64, 64],
    index: [4, 64, 32],
    reuse: None,
    d_ff: 512,
    experts: [8, 2, 256],
    groups: [4, 2],
    scale: 2.5,
    n_vocab: 512,
    n_ctx: 4096,
    rope_theta: 1e4,
    yarn: None,
    eps: 1e-6,
};

/// The budget and the context of a large one, for measuring what depth costs.
pub(super) const TINY_DEEP: Latent = Latent {
    index: [4, 64, 2048],
    n_ctx: 262_144,
    ..TINY
};

/// `DeepSeek` V3.2.
pub(super) const DEEPSEEK_V32: Latent = Latent {
    n_layers: 61,
    n_dense: 3,
    d_model: 7168,
    n_heads: 128,
    ranks: [1536, 512],
    head: [128, 64, 128],
    index: [64, 128, 2048],
    reuse: None,
    d_ff: 18_432,
    experts: [256, 8, 2048],
    groups: [8, 4],
    scale: 2.5,
    n_vocab: 129_280,
    n_ctx: 163_840,
    rope_theta: 1e4,
    yarn: Some((40.0, 4096)),
    eps: 1e-6,
};

/// Five layers, of which the fourth and fifth attend to what the third selects.
pub(super) const TINY_REUSING: Latent = Latent {
    n_layers: 5,
    reuse: Some(4),
    groups: [1, 1],
    rope_theta: 1e6,
    eps: 1e-5,
    ..TINY
};

/// GLM 5.
pub(super) const GLM_5: Latent = Latent {
    n_layers: 78,
    d_model: 6144,
    n_heads: 64,
    ranks: [2048, 512],
    head: [192, 64, 256],
    index: [32, 128, 2048],
    d_ff: 12_288,
    groups: [1, 1],
    n_vocab: 154_880,
    n_ctx: 202_752,
    rope_theta: 1e6,
    yarn: None,
    eps: 1e-5,
    ..DEEPSEEK_V32
};

impl Latent {
    fn has_indexer(&self, layer: usize) -> bool {
        let Some(every) = self.reuse else {
            return true;
        };
        layer < 2 || (layer - 2).is_multiple_of(every)
    }
}

/// Keys and tensors of a decoder of latent attention.
pub(super) fn latent(o: &mut Outline, m: &Latent) {
    let ([q_rank, kv_rank], [nope, n_rot, d_v]) = (m.ranks, m.head);
    let ([index_heads, index_dim, budget], [n_experts, k, d_expert]) = (m.index, m.experts);
    let (d, row) = (m.d_model, kv_rank + n_rot);
    o.size("block_count", m.n_layers);
    o.size("context_length", m.n_ctx);
    o.size("embedding_length", d);
    o.size("feed_forward_length", m.d_ff);
    o.size("leading_dense_block_count", m.n_dense);
    o.size("attention.head_count", m.n_heads);
    o.size("attention.head_count_kv", 1);
    o.size("attention.key_length", row);
    o.size("attention.value_length", kv_rank);
    o.size("attention.key_length_mla", nope + n_rot);
    o.size("attention.value_length_mla", d_v);
    o.size("attention.q_lora_rank", q_rank);
    o.size("attention.kv_lora_rank", kv_rank);
    o.number("attention.layer_norm_rms_epsilon", m.eps);
    o.size("attention.indexer.head_count", index_heads);
    o.size("attention.indexer.key_length", index_dim);
    o.size("attention.indexer.top_k", budget);
    if m.reuse.is_some() {
        let types = (0..m.n_layers).map(|layer| i32::from(m.has_indexer(layer)));
        let types = Value::Array(Array::I32(types.collect()));
        o.key("attention.indexer.types", types);
    }
    o.size("rope.dimension_count", n_rot);
    o.number("rope.freq_base", m.rope_theta);
    if let Some((factor, n_ctx)) = m.yarn {
        o.key("rope.scaling.type", Value::String("yarn".to_owned()));
        o.number("rope.scaling.factor", factor);
        o.size("rope.scaling.original_context_length", n_ctx);
        o.number("rope.scaling.yarn_log_multiplier", 0.1);
    }
    o.size("expert_count", n_experts);
    o.size("expert_used_count", k);
    o.size("expert_shared_count", 1);
    o.size("expert_feed_forward_length", d_expert);
    o.size("expert_gating_func", 2);
    o.key("expert_weights_norm", Value::Bool(true));
    o.number("expert_weights_scale", m.scale);
    let [groups, groups_used] = m.groups;
    o.size("expert_group_count", groups);
    o.size("expert_group_used_count", groups_used);
    o.ends(m.n_vocab, d, false);
    for layer in 0..m.n_layers {
        let name = |what: &str| format!("blk.{layer}.{what}");
        o.norm(&name("attn_norm"), d, 1.0);
        o.norm(&name("ffn_norm"), d, 1.0);
        o.norm(&name("attn_q_a_norm"), q_rank, 1.0);
        o.norm(&name("attn_kv_a_norm"), kv_rank, 1.0);
        o.matrix(&name("attn_q_a"), &[q_rank, d]);
        o.matrix(&name("attn_q_b"), &[m.n_heads * (nope + n_rot), q_rank]);
        o.matrix(&name("attn_kv_a_mqa"), &[row, d]);
        o.matrix(&name("attn_k_b"), &[m.n_heads, kv_rank, nope]);
        o.matrix(&name("attn_v_b"), &[m.n_heads, d_v, kv_rank]);
        o.matrix(&name("attn_output"), &[d, m.n_heads * d_v]);
        if m.has_indexer(layer) {
            o.norm(&name("indexer.k_norm"), index_dim, 1.0);
            o.vector(name("indexer.k_norm.bias"), &[index_dim], 0.0, 0.1);
            o.float_matrix(&name("indexer.proj"), &[index_heads, d]);
            o.matrix(&name("indexer.attn_k"), &[index_dim, d]);
            o.matrix(
                &name("indexer.attn_q_b"),
                &[index_heads * index_dim, q_rank],
            );
        }
        if layer < m.n_dense {
            o.matrix(&name("ffn_gate"), &[m.d_ff, d]);
            o.matrix(&name("ffn_up"), &[m.d_ff, d]);
            o.matrix(&name("ffn_down"), &[d, m.d_ff]);
            continue;
        }
        experts(o, layer, d, [n_experts, d_expert]);
        o.vector(name("exp_probs_b.bias"), &[n_experts], 0.0, 0.1);
        o.matrix(&name("ffn_gate_shexp"), &[d_expert, d]);
        o.matrix(&name("ffn_up_shexp"), &[d_expert, d]);
        o.matrix(&name("ffn_down_shexp"), &[d, d_expert]);
    }
}
