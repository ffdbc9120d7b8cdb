//! The table of synthetic models: architectures, their sizes, and what each adds to an [`Outline`].
//!
//! # Add an architecture
//! One entry in [`FAMILIES`] and one function like [`dense`] that takes the sizes as a struct, so that a row of the
//! table can be read against the published configuration. The function
//!
//! 1. sets every key `ARCH.*` that the loader of the architecture reads: `o.size("block_count", ..)`,
//!    `o.number("rope.freq_base", ..)`, `o.key(..)` for arrays and texts;
//! 2. calls `o.ends(n_vocab, d_model, tied)` for vocabulary, `token_embd`, `output_norm` and `output`;
//! 3. adds the tensors of each layer in the order of a published file, with the names of the file: `o.matrix(label,
//!    &[d_out, d_in])` for what is multiplied with, `o.matrix(label, &[n_experts, d_out, d_in])` for stacked experts,
//!    `o.float_matrix` for routers, `o.norm(label, n, 1.0)`, and `o.vector(name, shape, centre, spread)` or
//!    `o.values(name, values)` for the rest (`ssm_a` must be negative, decays in their range, and so on).
//!
//! Each family has a size `tiny`: rows that are multiples of 256 so that every type is used as it is, every kind of
//! layer at least once, a vocabulary of 512. The tests run it in every type without another line.

use super::latent::{self, latent};
use super::outline::Outline;
use super::streams::{Ngrams, Streamed, streamed};
use crate::gguf::{Array, Value};

/// Adds keys and tensors to an outline.
pub(super) type Build = fn(&mut Outline);

/// An architecture and its sizes.
pub(super) struct Family {
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// By size, smallest first.
    pub(super) sizes: &'static [(&'static str, Build)],
}

impl Family {
    /// The sizes, for messages.
    pub(super) fn size_names(&self) -> String {
        let names: Vec<&str> = self.sizes.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

/// Every synthetic model.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "llama",
        sizes: &[
            ("tiny", |o| dense(o, &TINY)),
            // SmolLM2
            ("135m", |o| {
                dense(o, &smollm2(30, 576, [9, 3, 64], 1536));
            }),
            ("360m", |o| {
                dense(o, &smollm2(32, 960, [15, 5, 64], 2560));
            }),
            // Llama 3.1 and 3.2, without the stretched frequencies
            ("1b", |o| dense(o, &llama3(16, 2048, [32, 8, 64], 8192))),
            ("3b", |o| dense(o, &llama3(28, 3072, [24, 8, 128], 8192))),
            ("8b", |o| {
                dense(
                    o,
                    &Dense {
                        tied: false,
                        ..llama3(32, 4096, [32, 8, 128], 14336)
                    },
                );
            }),
            ("70b", |o| {
                dense(
                    o,
                    &Dense {
                        tied: false,
                        ..llama3(80, 8192, [64, 8, 128], 28672)
                    },
                );
            }),
        ],
    },
    Family {
        arch: "qwen2",
        sizes: &[
            ("tiny", |o| dense(o, &qwen2_of(TINY))),
            // Qwen2.5
            ("0.5b", |o| {
                dense(o, &qwen2(24, 896, [14, 2, 64], 4864, 151_936, true));
            }),
            ("1.5b", |o| {
                dense(o, &qwen2(28, 1536, [12, 2, 128], 8960, 151_936, true));
            }),
            ("7b", |o| {
                dense(o, &qwen2(28, 3584, [28, 4, 128], 18944, 152_064, false));
            }),
            ("32b", |o| {
                dense(o, &qwen2(64, 5120, [40, 8, 128], 27648, 152_064, false));
            }),
            ("72b", |o| {
                dense(o, &qwen2(80, 8192, [64, 8, 128], 29568, 152_064, false));
            }),
        ],
    },
    Family {
        arch: "qwen3",
        sizes: &[
            ("tiny", |o| dense(o, &qwen3_of(TINY))),
            ("0.6b", |o| {
                dense(o, &qwen3(28, 1024, [16, 8, 128], 3072, true));
            }),
            ("1.7b", |o| {
                dense(o, &qwen3(28, 2048, [16, 8, 128], 6144, true));
            }),
            ("4b", |o| {
                dense(o, &qwen3(36, 2560, [32, 8, 128], 9728, true));
            }),
            ("8b", |o| {
                dense(o, &qwen3(36, 4096, [32, 8, 128], 12288, false));
            }),
            ("14b", |o| {
                dense(o, &qwen3(40, 5120, [40, 8, 128], 17408, false));
            }),
            ("32b", |o| {
                dense(o, &qwen3(64, 5120, [64, 8, 128], 25600, false));
            }),
        ],
    },
    Family {
        arch: "qwen35",
        sizes: &[
            ("tiny", |o| hybrid(o, &TINY_HYBRID)),
            // Qwen3.5
            ("0.8b", |o| {
                hybrid(o, &qwen35(24, 1024, [8, 2, 256], 3584, 16, true));
            }),
            ("4b", |o| {
                hybrid(o, &qwen35(32, 2560, [16, 4, 256], 9216, 32, true));
            }),
            ("9b", |o| {
                hybrid(o, &qwen35(32, 4096, [16, 4, 256], 12288, 32, false));
            }),
            ("27b", |o| {
                hybrid(o, &qwen35(64, 5120, [24, 4, 256], 17408, 48, false));
            }),
        ],
    },
    Family {
        arch: "qwen35moe",
        sizes: &[
            ("tiny", |o| {
                hybrid(o, &shared_expert(TINY_HYBRID, 8, 2, 256));
            }),
            // Qwen3.5
            ("35b-a3b", |o| {
                let model = qwen35(40, 2048, [16, 2, 256], 0, 32, false);
                hybrid(o, &shared_expert(model, 256, 8, 512));
            }),
            ("122b-a10b", |o| {
                let model = qwen35(48, 3072, [32, 2, 256], 0, 64, false);
                hybrid(o, &shared_expert(model, 256, 8, 1024));
            }),
            ("397b-a17b", |o| {
                let model = qwen35(60, 4096, [32, 2, 256], 0, 64, false);
                hybrid(o, &shared_expert(model, 512, 10, 1024));
            }),
        ],
    },
    Family {
        arch: "qwen3next",
        sizes: &[
            ("tiny", |o| {
                hybrid(o, &qwen3next_of(shared_expert(TINY_HYBRID, 8, 2, 256)));
            }),
            ("80b-a3b", |o| {
                let model = qwen35(48, 2048, [16, 2, 256], 5120, 32, false);
                let mut model = qwen3next_of(shared_expert(model, 512, 10, 512));
                model.dense.n_vocab = 151_936;
                hybrid(o, &model);
            }),
        ],
    },
    Family {
        arch: "qwen4exp",
        sizes: &[
            ("tiny", |o| streamed(o, &TINY_STREAMED)),
            // The layers of a large one in the same proportions, for measuring what depth costs.
            ("tiny-deep", |o| streamed(o, &TINY_DEEP)),
            ("177b-a7b", |o| streamed(o, &QWEN4EXP)),
        ],
    },
    Family {
        arch: "deepseek32",
        sizes: &[
            ("tiny", |o| latent(o, &latent::TINY)),
            ("tiny-deep", |o| latent(o, &latent::TINY_DEEP)),
            ("671b-a37b", |o| latent(o, &latent::DEEPSEEK_V32)),
        ],
    },
    Family {
        arch: "glm-dsa",
        sizes: &[
            ("tiny", |o| latent(o, &latent::TINY_REUSING)),
            ("744b-a40b", |o| latent(o, &latent::GLM_5)),
        ],
    },
    Family {
        arch: "qwen3moe",
        sizes: &[
            ("tiny", |o| {
                dense(o, &with_experts(qwen3_of(TINY), 8, 2, 256));
            }),
            ("30b-a3b", |o| {
                let model = qwen3(48, 2048, [32, 4, 128], 6144, false);
                dense(o, &with_experts(model, 128, 8, 768));
            }),
            ("235b-a22b", |o| {
                let model = qwen3(94, 4096, [64, 4, 128], 12288, false);
                dense(o, &with_experts(model, 128, 8, 1536));
            }),
        ],
    },
    Family {
        arch: "gemma3",
        sizes: &[
            // Six layers: the last one is global.
            ("tiny", |o| {
                dense(
                    o,
                    &gemma3_of(Dense {
                        n_layers: 6,
                        window: 64,
                        ..TINY
                    }),
                );
            }),
            ("270m", |o| {
                dense(o, &gemma3(18, 640, [4, 1, 256], 2048, 512));
            }),
            ("1b", |o| {
                dense(o, &gemma3(26, 1152, [4, 1, 256], 6912, 512));
            }),
            ("4b", |o| {
                dense(o, &gemma3(34, 2560, [8, 4, 256], 10240, 1024));
            }),
            ("12b", |o| {
                dense(o, &gemma3(48, 3840, [16, 8, 256], 15360, 1024));
            }),
            ("27b", |o| {
                dense(o, &gemma3(62, 5376, [32, 16, 128], 21504, 1024));
            }),
        ],
    },
];

/// A decoder: what `llama`, `qwen2`, `qwen3`, `qwen3moe` and `gemma3` differ in.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact of an architecture"
)]
#[derive(Clone, Copy)]
pub(super) struct Dense {
    pub(super) n_layers: usize,
    pub(super) d_model: usize,
    /// Query heads, key and value heads, size of a head.
    heads: [usize; 3],
    d_ff: usize,
    pub(super) n_vocab: usize,
    n_ctx: usize,
    rope_theta: f32,
    eps: f32,
    pub(super) tied: bool,
    qkv_bias: bool,
    qk_norm: bool,
    /// Norms behind each branch, as gemma has them.
    post_norms: bool,
    /// Sliding window, 0 for none.
    window: usize,
    /// Stretches positions of global layers, 1 for none.
    rope_factor: f32,
    /// Experts in place of the FFN: their number, those that a token uses, their width.
    experts: Option<[usize; 3]>,
}

const TINY: Dense = Dense {
    n_layers: 2,
    d_model: 256,
    heads: [4, 2, 64],
    d_ff: 512,
    n_vocab: 512,
    n_ctx: 4096,
    rope_theta: 1e4,
    eps: 1e-5,
    tied: false,
    qkv_bias: false,
    qk_norm: false,
    post_norms: false,
    window: 0,
    rope_factor: 1.0,
    experts: None,
};

fn smollm2(n_layers: usize, d_model: usize, heads: [usize; 3], d_ff: usize) -> Dense {
    Dense {
        n_layers,
        d_model,
        heads,
        d_ff,
        n_vocab: 49_152,
        n_ctx: 8192,
        rope_theta: 1e5,
        tied: true,
        ..TINY
    }
}

fn llama3(n_layers: usize, d_model: usize, heads: [usize; 3], d_ff: usize) -> Dense {
    Dense {
        n_vocab: 128_256,
        n_ctx: 131_072,
        rope_theta: 5e5,
        ..smollm2(n_layers, d_model, heads, d_ff)
    }
}

/// With the switches of `qwen2`.
fn qwen2_of(dense: Dense) -> Dense {
    Dense {
        qkv_bias: true,
        rope_theta: 1e6,
        eps: 1e-6,
        ..dense
    }
}

fn qwen2(
    n_layers: usize,
    d_model: usize,
    heads: [usize; 3],
    d_ff: usize,
    n_vocab: usize,
    tied: bool,
) -> Dense {
    qwen2_of(Dense {
        n_layers,
        d_model,
        heads,
        d_ff,
        n_vocab,
        n_ctx: 32_768,
        tied,
        ..TINY
    })
}

/// With the switches of `qwen3`.
fn qwen3_of(dense: Dense) -> Dense {
    Dense {
        qk_norm: true,
        rope_theta: 1e6,
        eps: 1e-6,
        ..dense
    }
}

fn qwen3(n_layers: usize, d_model: usize, heads: [usize; 3], d_ff: usize, tied: bool) -> Dense {
    qwen3_of(Dense {
        n_layers,
        d_model,
        heads,
        d_ff,
        n_vocab: 151_936,
        n_ctx: 40_960,
        tied,
        ..TINY
    })
}

/// With experts in place of the FFN.
fn with_experts(dense: Dense, n_experts: usize, k: usize, d_ff: usize) -> Dense {
    Dense {
        experts: Some([n_experts, k, d_ff]),
        ..dense
    }
}

/// With the switches of `gemma3`.
fn gemma3_of(dense: Dense) -> Dense {
    Dense {
        tied: true,
        qk_norm: true,
        post_norms: true,
        rope_theta: 1e6,
        eps: 1e-6,
        ..dense
    }
}

fn gemma3(n_layers: usize, d_model: usize, heads: [usize; 3], d_ff: usize, window: usize) -> Dense {
    let text_only = window == 512;
    gemma3_of(Dense {
        n_layers,
        d_model,
        heads,
        d_ff,
        n_vocab: 262_144,
        n_ctx: if text_only { 32_768 } else { 131_072 },
        window,
        rope_factor: if text_only { 1.0 } else { 8.0 },
        ..TINY
    })
}

/// A decoder of delta nets and gated attention: one layer in four is attention.
#[derive(Clone, Copy)]
pub(super) struct Hybrid {
    pub(super) dense: Dense,
    /// Rotated channels of a head, and how their pairs are shared between axes.
    n_rot: usize,
    sections: Option<[i32; 4]>,
    /// Key heads, value heads, size of both, taps of the convolution.
    delta: [usize; 4],
}

const TINY_HYBRID: Hybrid = Hybrid {
    dense: Dense {
        n_layers: 4,
        eps: 1e-6,
        rope_theta: 1e7,
        ..TINY
    },
    n_rot: 16,
    sections: Some([3, 3, 2, 0]),
    delta: [2, 4, 64, 4],
};

fn qwen35(
    n_layers: usize,
    d_model: usize,
    heads: [usize; 3],
    d_ff: usize,
    n_v_heads: usize,
    tied: bool,
) -> Hybrid {
    Hybrid {
        dense: Dense {
            n_layers,
            d_model,
            heads,
            d_ff,
            n_vocab: 248_320,
            n_ctx: 262_144,
            tied,
            ..TINY_HYBRID.dense
        },
        n_rot: 64,
        sections: Some([11, 11, 10, 0]),
        delta: [16, n_v_heads, 128, 4],
    }
}

/// With experts in place of the FFN, and one more that every token uses.
fn shared_expert(model: Hybrid, n_experts: usize, k: usize, d_ff: usize) -> Hybrid {
    Hybrid {
        dense: with_experts(model.dense, n_experts, k, d_ff),
        ..model
    }
}

/// With the rope and the projections of `qwen3next`.
fn qwen3next_of(model: Hybrid) -> Hybrid {
    Hybrid {
        sections: None,
        ..model
    }
}

const TINY_STREAMED: Streamed = Streamed {
    hybrid: Hybrid {
        dense: Dense {
            experts: Some([8, 2, 256]),
            d_ff: 0,
            ..TINY_HYBRID.dense
        },
        ..TINY_HYBRID
    },
    streams: [4, 256],
    indexer: [2, 32, 64, 4],
    ngrams: Ngrams {
        longest: 3,
        n_heads: 2,
        width: 64,
        n_rows: 100,
        eos: 2,
        image: 3,
    },
};

/// Not a third of the large one's width. The indexer is an eighth of the large one's, because products grow with the
/// square of a width and scores with its first power: with 131,072 tokens they are 6 % of the operations of a step, and
/// 3 % in the large one.
const TINY_DEEP: Streamed = Streamed {
    hybrid: Hybrid {
        dense: Dense {
            n_layers: 8,
            d_model: 768,
            heads: [12, 1, 64],
            n_ctx: 262_144,
            experts: Some([32, 10, 192]),
            ..TINY_STREAMED.hybrid.dense
        },
        n_rot: 16,
        delta: [4, 12, 32, 4],
        ..TINY_HYBRID
    },
    streams: [4, 96],
    indexer: [4, 16, 2048, 4],
    ngrams: Ngrams {
        n_heads: 8,
        width: 48,
        n_rows: 10_000,
        ..TINY_STREAMED.ngrams
    },
};

/// Qwen3.8-Flash-Next.
const QWEN4EXP: Streamed = Streamed {
    hybrid: Hybrid {
        dense: Dense {
            n_layers: 48,
            d_model: 2560,
            heads: [24, 2, 256],
            d_ff: 0,
            n_vocab: 248_320,
            n_ctx: 262_144,
            experts: Some([512, 10, 640]),
            ..TINY_HYBRID.dense
        },
        n_rot: 64,
        sections: Some([11, 11, 10, 0]),
        delta: [16, 48, 128, 4],
    },
    streams: [4, 320],
    indexer: [4, 128, 2048, 4],
    ngrams: Ngrams {
        longest: 3,
        n_heads: 8,
        width: 160,
        n_rows: 20_000_000,
        eos: 248_044,
        image: 248_056,
    },
};

/// Attention is every so many layers.
const INTERVAL: usize = 4;

/// Whether a layer of such a decoder is attention.
pub(super) fn is_attention(layer: usize) -> bool {
    (layer + 1).is_multiple_of(INTERVAL)
}

/// Keys and tensors of a decoder of delta nets and gated attention.
fn hybrid(o: &mut Outline, m: &Hybrid) {
    let (d, d_ff) = (m.dense.d_model, m.dense.d_ff);
    hybrid_keys(o, m);
    o.ends(m.dense.n_vocab, d, m.dense.tied);
    for layer in 0..m.dense.n_layers {
        let name = |what: &str| format!("blk.{layer}.{what}");
        o.norm(&name("attn_norm"), d, 1.0);
        mixer(o, m, layer);
        o.norm(&name("post_attention_norm"), d, 1.0);
        if m.dense.experts.is_some() {
            experts_and_shared(o, layer, &m.dense);
        } else {
            o.matrix(&name("ffn_gate"), &[d_ff, d]);
            o.matrix(&name("ffn_up"), &[d_ff, d]);
            o.matrix(&name("ffn_down"), &[d, d_ff]);
        }
    }
}

/// Keys of such a decoder.
pub(super) fn hybrid_keys(o: &mut Outline, m: &Hybrid) {
    let [n_heads, n_kv_heads, head_dim] = m.dense.heads;
    let [n_k, n_v, state, taps] = m.delta;
    let (d, d_ff) = (m.dense.d_model, m.dense.d_ff);
    o.size("block_count", m.dense.n_layers);
    o.size("context_length", m.dense.n_ctx);
    o.size("embedding_length", d);
    if d_ff > 0 {
        o.size("feed_forward_length", d_ff);
    }
    if let Some([n_experts, k, d_ff]) = m.dense.experts {
        o.size("expert_count", n_experts);
        o.size("expert_used_count", k);
        o.size("expert_feed_forward_length", d_ff);
        o.size("expert_shared_feed_forward_length", d_ff);
    }
    o.size("attention.head_count", n_heads);
    o.size("attention.head_count_kv", n_kv_heads);
    o.size("attention.key_length", head_dim);
    o.size("attention.value_length", head_dim);
    o.size("full_attention_interval", INTERVAL);
    o.size("rope.dimension_count", m.n_rot);
    if let Some(sections) = m.sections {
        o.key(
            "rope.dimension_sections",
            Value::Array(Array::I32(sections.to_vec())),
        );
    }
    o.number("rope.freq_base", m.dense.rope_theta);
    o.number("attention.layer_norm_rms_epsilon", m.dense.eps);
    o.size("ssm.conv_kernel", taps);
    o.size("ssm.state_size", state);
    o.size("ssm.group_count", n_k);
    o.size("ssm.time_step_rank", n_v);
    o.size("ssm.inner_size", n_v * state);
}

/// Tensors of attention or of a delta net, whichever the layer is.
pub(super) fn mixer(o: &mut Outline, m: &Hybrid, layer: usize) {
    let [n_heads, n_kv_heads, head_dim] = m.dense.heads;
    let [n_k, n_v, state, taps] = m.delta;
    let (d_q, d_kv, inner) = (n_heads * head_dim, n_kv_heads * head_dim, n_v * state);
    let (d, n_channels) = (m.dense.d_model, 2 * n_k * state + inner);
    let name = |what: &str| format!("blk.{layer}.{what}");
    if is_attention(layer) {
        o.matrix(&name("attn_q"), &[2 * d_q, d]);
        o.matrix(&name("attn_k"), &[d_kv, d]);
        o.matrix(&name("attn_v"), &[d_kv, d]);
        o.norm(&name("attn_q_norm"), head_dim, 1.0);
        o.norm(&name("attn_k_norm"), head_dim, 1.0);
        o.matrix(&name("attn_output"), &[d, d_q]);
    } else {
        o.matrix(&name("attn_qkv"), &[n_channels, d]);
        o.matrix(&name("attn_gate"), &[inner, d]);
        o.vector(name("ssm_conv1d.weight"), &[n_channels, taps], 0.0, 0.5);
        o.vector(name("ssm_dt.bias"), &[n_v], 0.0, 1.0);
        // From heads that forget slowly to heads that forget within a few tokens.
        o.vector(name("ssm_a"), &[n_v], -1.0, 0.95);
        if m.sections.is_some() {
            o.matrix(&name("ssm_beta"), &[n_v, d]);
            o.matrix(&name("ssm_alpha"), &[n_v, d]);
        } else {
            o.matrix(&name("ssm_ba"), &[2 * n_v, d]);
        }
        o.norm(&name("ssm_norm"), state, 1.0);
        o.matrix(&name("ssm_out"), &[d, inner]);
    }
}

/// Tensors of the experts of a layer, and of the one that every token uses, which is as wide as the others.
pub(super) fn experts_and_shared(o: &mut Outline, layer: usize, m: &Dense) {
    let (d, [n_experts, _, d_ff]) = (m.d_model, m.experts.unwrap_or_default());
    let name = |what: &str| format!("blk.{layer}.{what}");
    experts(o, layer, d, [n_experts, d_ff]);
    o.float_matrix(&name("ffn_gate_inp_shexp"), &[d]);
    o.matrix(&name("ffn_gate_shexp"), &[d_ff, d]);
    o.matrix(&name("ffn_up_shexp"), &[d_ff, d]);
    o.matrix(&name("ffn_down_shexp"), &[d, d_ff]);
}

/// Tensors of the experts of a layer.
pub(super) fn experts(o: &mut Outline, layer: usize, d: usize, [n_experts, d_ff]: [usize; 2]) {
    let name = |what: &str| format!("blk.{layer}.{what}");
    o.float_matrix(&name("ffn_gate_inp"), &[n_experts, d]);
    o.matrix(&name("ffn_gate_exps"), &[n_experts, d_ff, d]);
    o.matrix(&name("ffn_up_exps"), &[n_experts, d_ff, d]);
    o.matrix(&name("ffn_down_exps"), &[n_experts, d, d_ff]);
}

/// Keys and tensors of a decoder.
fn dense(o: &mut Outline, m: &Dense) {
    let [n_heads, n_kv_heads, head_dim] = m.heads;
    let (d, d_q, d_kv) = (m.d_model, n_heads * head_dim, n_kv_heads * head_dim);
    o.size("block_count", m.n_layers);
    o.size("context_length", m.n_ctx);
    o.size("embedding_length", d);
    o.size("feed_forward_length", m.d_ff);
    o.size("attention.head_count", n_heads);
    o.size("attention.head_count_kv", n_kv_heads);
    o.size("attention.key_length", head_dim);
    o.size("attention.value_length", head_dim);
    o.size("rope.dimension_count", head_dim);
    o.number("rope.freq_base", m.rope_theta);
    o.number("attention.layer_norm_rms_epsilon", m.eps);
    if m.window > 0 {
        o.size("attention.sliding_window", m.window);
    }
    if let Some([n_experts, k, d_ff]) = m.experts {
        o.size("expert_count", n_experts);
        o.size("expert_used_count", k);
        o.size("expert_feed_forward_length", d_ff);
    }
    if m.rope_factor > 1.0 {
        o.key("rope.scaling.type", Value::String("linear".to_owned()));
        o.number("rope.scaling.factor", m.rope_factor);
    }
    o.ends(m.n_vocab, d, m.tied);
    // Behind a branch of gemma a norm sets its size: together the branches outweigh the embedding, which is scaled up.
    let post = 3.0 / (2.0 * m.n_layers as f32).sqrt();
    for layer in 0..m.n_layers {
        let name = |what: &str| format!("blk.{layer}.{what}");
        o.norm(&name("attn_norm"), d, 1.0);
        for (part, d_out) in [("attn_q", d_q), ("attn_k", d_kv), ("attn_v", d_kv)] {
            o.matrix(&name(part), &[d_out, d]);
            if m.qkv_bias {
                o.vector(format!("{}.bias", name(part)), &[d_out], 0.0, 0.1);
            }
        }
        if m.qk_norm {
            o.norm(&name("attn_q_norm"), head_dim, 1.0);
            o.norm(&name("attn_k_norm"), head_dim, 1.0);
        }
        o.matrix(&name("attn_output"), &[d, d_q]);
        if m.post_norms {
            o.norm(&name("post_attention_norm"), d, post);
        }
        o.norm(&name("ffn_norm"), d, 1.0);
        if let Some([n_experts, _, d_ff]) = m.experts {
            experts(o, layer, d, [n_experts, d_ff]);
        } else {
            o.matrix(&name("ffn_gate"), &[m.d_ff, d]);
            o.matrix(&name("ffn_up"), &[m.d_ff, d]);
            o.matrix(&name("ffn_down"), &[d, m.d_ff]);
        }
        if m.post_norms {
            o.norm(&name("post_ffw_norm"), d, post);
        }
    }
}
