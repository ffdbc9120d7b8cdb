//! `qwen35`: three gated delta nets to one layer of attention with an output gate, SwiGLU after each.
//!
//! `Hybrid` is also what the architectures with experts are made of.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::delta_rule_step::HeadMap;
use gemel_core::ops::gated_rms_norm::GateKind;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::rope::RopeMode;

use super::hybrid::{
    Experts, Net, delta_sizes, found_beside, load_attention, load_delta, load_experts,
    plain_metadata, recurrent_layers, sections,
};
use super::llama::load_ffn;
use super::{DenseParams, Ends, Model, ModelError, ModelInfo, Tables, refuse};
use crate::blocks::{AttentionShape, DeltaNet, GatedAttention, GatedFfn, StepGraph};
use crate::gguf::Metadata;
use crate::kv_cache::KvLayer;
use crate::moe::Moe;
use crate::rope::RopeConfig;
use crate::state::{DeltaSizes, StateLayer};
use crate::weights::{Linear, Requests, WeightId};

/// `general.architecture`.
pub const ARCH: &str = "qwen35";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    let kind = Kind {
        map: HeadMap::Tiled,
        sections: true,
        experts: false,
    };
    Hybrid::load(metadata, requests, ARCH, kind).map(|model| -> Box<dyn Model> { Box::new(model) })
}

/// What the architectures differ in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Which key head a value head of the delta net reads.
    pub(super) map: HeadMap,
    /// Whether rope has sections.
    pub(super) sections: bool,
    /// Whether the FFNs are experts, one of them shared by all tokens.
    pub(super) experts: bool,
}

/// The decoder of delta nets and gated attention.
#[derive(Debug)]
pub(super) struct Hybrid {
    params: DenseParams,
    attention: AttentionShape,
    sizes: DeltaSizes,
    history: usize,
    rope: RopeConfig,
    ends: Ends,
    layers: Vec<Layer>,
    /// Kept for drafting.
    #[allow(dead_code, reason = "loaded with the trunk, for drafting")]
    mtp: Option<MtpBlock>,
    found: Vec<String>,
}

#[derive(Debug)]
struct Layer {
    attn_norm: WeightId,
    mixer: Mixer,
    ffn_norm: WeightId,
    ffn: Ffn,
}

#[derive(Debug)]
enum Ffn {
    Dense(GatedFfn),
    Experts(Box<Moe>),
}

/// What mixes tokens in a layer, with its place among the layers of its kind.
#[derive(Debug)]
enum Mixer {
    Attention(usize, Box<GatedAttention>),
    Delta(usize, Box<DeltaNet>),
}

/// The block that predicts the token after the next from a hidden row and the next token.
#[derive(Debug)]
#[allow(dead_code, reason = "loaded with the trunk, for drafting")]
struct MtpBlock {
    layer: Layer,
    /// From embedding and hidden row, `[d_model, 2 * d_model]`.
    eh_proj: Linear,
    enorm: WeightId,
    hnorm: WeightId,
    /// Final norm; the trunk's where the block has none.
    head_norm: WeightId,
    /// Head; the trunk's where the block has none.
    head: Linear,
    /// Embedding table; the trunk's where the block has none.
    token_embd: WeightId,
}

impl Hybrid {
    /// Reads hyper-parameters and requests tensors.
    pub(super) fn load(
        metadata: &Metadata,
        requests: &mut Requests<'_>,
        arch: &str,
        kind: Kind,
    ) -> Result<Self, ModelError> {
        let (plain, n_mtp) = plain_metadata(metadata, arch)?;
        let mut params = DenseParams::read(&plain, requests, arch)?;
        let n_layers = params.info.n_layers;
        if n_mtp > 0 && !requests.has("blk.0.attn_norm.weight") {
            return Err(refuse(
                format!("{arch}.nextn_predict_layers"),
                n_mtp,
                "0 in a file on its own: this one has only the block that drafts for another file",
            ));
        }
        if params.k_dim != params.v_dim {
            return Err(refuse(
                format!("{arch}.attention.value_length"),
                params.v_dim,
                format!("the {} channels of a key", params.k_dim),
            ));
        }
        let experts = Experts::read(&plain, &params, kind.experts)?;
        if let Some(Experts { moe, d_shared }) = &experts {
            params.info = params.info.with_experts(moe);
            params.info.widest = params.info.widest.max(2 * d_shared);
        }
        let (sizes, n_taps) = delta_sizes(metadata, arch)?;
        let recurrent = recurrent_layers(metadata, arch, n_layers, n_layers + n_mtp)?;
        let mode = if kind.sections {
            RopeMode::Imrope(sections(metadata, arch)?)
        } else {
            RopeMode::Neox
        };
        let rope =
            RopeConfig::from_metadata(&plain, arch, mode, params.k_dim, params.info.n_ctx_train)?;
        params.info.widest = params
            .info
            .widest
            .max(sizes.n_channels() + sizes.n_v_heads * sizes.v_dim)
            .max((2 * params.n_heads + 2 * params.n_kv_heads) * params.k_dim);
        let ends = Ends::load(requests, &params.info)?;
        let net = Net {
            sizes,
            n_taps,
            map: kind.map,
            gate: GateKind::Silu,
        };
        let mut counts = [0, 0];
        let layers = (0..n_layers)
            .map(|layer| {
                let count = &mut counts[usize::from(recurrent[layer])];
                let index = *count;
                *count += 1;
                Layer::load(
                    requests,
                    &params,
                    experts.as_ref(),
                    layer,
                    recurrent[layer].then_some(&net),
                    index,
                )
            })
            .collect::<Result<_, _>>()?;
        let mtp = (n_mtp > 0)
            .then(|| MtpBlock::load(requests, &params, experts.as_ref(), &ends, n_layers))
            .transpose()?;
        let found = found_beside(requests, mtp.as_ref().map(|_| n_layers));
        Ok(Self {
            attention: AttentionShape {
                n_heads: params.n_heads,
                n_kv_heads: params.n_kv_heads,
                k_dim: params.k_dim,
                v_dim: params.v_dim,
                scale: 1.0 / (params.k_dim as f32).sqrt(),
                softcap: 0.0,
                window: 0,
            },
            params,
            sizes,
            history: n_taps - 1,
            rope,
            ends,
            layers,
            mtp,
            found,
        })
    }

    fn layers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().map(|layer| &layer.mixer)
    }
}

impl Layer {
    fn load(
        requests: &mut Requests<'_>,
        p: &DenseParams,
        experts: Option<&Experts>,
        layer: usize,
        net: Option<&Net>,
        index: usize,
    ) -> Result<Self, ModelError> {
        let d = p.info.d_model;
        let name = |what: &str| format!("blk.{layer}.{what}");
        Ok(Self {
            attn_norm: requests.vector(&name("attn_norm"), d)?,
            mixer: match net {
                Some(net) => Mixer::Delta(index, Box::new(load_delta(requests, p, net, layer)?)),
                None => Mixer::Attention(index, Box::new(load_attention(requests, p, layer)?)),
            },
            ffn_norm: requests.vector(&name("post_attention_norm"), d)?,
            ffn: match experts {
                None => Ffn::Dense(load_ffn(requests, p, layer, GluKind::Swiglu)?),
                Some(experts) => Ffn::Experts(Box::new(load_experts(requests, p, experts, layer)?)),
            },
        })
    }
}

impl MtpBlock {
    fn load(
        requests: &mut Requests<'_>,
        p: &DenseParams,
        experts: Option<&Experts>,
        ends: &Ends,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (d, n_vocab) = (p.info.d_model, p.info.n_vocab);
        let name = |what: &str| format!("blk.{layer}.nextn.{what}");
        Ok(Self {
            layer: Layer::load(requests, p, experts, layer, None, 0)?,
            eh_proj: requests.linear(&name("eh_proj"), d, 2 * d)?,
            enorm: requests.vector(&name("enorm"), d)?,
            hnorm: requests.vector(&name("hnorm"), d)?,
            head_norm: if requests.has(&name("shared_head_norm.weight")) {
                requests.vector(&name("shared_head_norm"), d)?
            } else {
                ends.output_norm
            },
            head: if requests.has(&name("shared_head_head.weight")) {
                requests.linear(&name("shared_head_head"), n_vocab, d)?
            } else {
                ends.output.clone()
            },
            token_embd: if requests.has(&name("embed_tokens.weight")) {
                requests.matrix(&name("embed_tokens"), n_vocab, d)?
            } else {
                ends.token_embd
            },
        })
    }
}

impl Model for Hybrid {
    fn info(&self) -> &ModelInfo {
        &self.params.info
    }

    fn kv_layers(&self) -> Vec<KvLayer> {
        let layer = KvLayer {
            n_kv_heads: self.params.n_kv_heads,
            k_dim: self.params.k_dim,
            v_dim: self.params.v_dim,
            shared_kv: false,
            window: 0,
            index: None,
        };
        let attention = |mixer: &&Mixer| matches!(mixer, Mixer::Attention(..));
        vec![layer; self.layers().filter(attention).count()]
    }

    fn state_layers(&self) -> Vec<StateLayer> {
        let layer = StateLayer {
            n_channels: self.sizes.n_channels(),
            history: self.history,
            delta: Some(self.sizes),
        };
        let delta = |mixer: &&Mixer| matches!(mixer, Mixer::Delta(..));
        vec![layer; self.layers().filter(delta).count()]
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        vec![&self.rope]
    }

    fn found(&self) -> &[String] {
        &self.found
    }

    fn build(&self, g: &mut StepGraph<'_>, tables: &Tables) -> Result<Option<ValueId>, GraphError> {
        let eps = self.params.eps;
        let rope = (&self.rope, &tables.ropes[0]);
        let mut x = g.embed(self.ends.token_embd, 1.0)?; // [n_tokens, d_model]
        for (layer, weights) in self.layers.iter().enumerate() {
            let name = |what: &str| format!("blk.{layer}.{what}");
            let h = g.rms_norm(&name("attn_norm"), x, weights.attn_norm, eps)?;
            let m = match &weights.mixer {
                Mixer::Attention(index, attention) => {
                    g.gated_attention((*index, layer), attention, &self.attention, rope, eps, h)?
                }
                Mixer::Delta(index, net) => g.delta_net((*index, layer), net, h)?,
            };
            x = g.add(&name("attn_residual"), x, m)?;
            let h = g.rms_norm(&name("ffn_norm"), x, weights.ffn_norm, eps)?;
            x = match &weights.ffn {
                Ffn::Dense(ffn) => {
                    let f = g.gated_ffn(&name("ffn"), ffn, h)?;
                    g.add(&name("ffn_residual"), x, f)?
                }
                Ffn::Experts(moe) => moe.build(g, &name("ffn"), h, Some(x))?,
            };
        }
        let Some(x) = g.output_rows(x)? else {
            return Ok(None);
        };
        let h = g.rms_norm("output_norm", x, self.ends.output_norm, eps)?;
        g.linear(&self.ends.output, h).map(Some) // [n_outputs, n_vocab]
    }
}
