//! `llama`: the decoder that most others vary. Adjacent-pair rope, SwiGLU or experts of it, optional biases, optional
//! fused QKV.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::rope::RopeMode;

use super::{DenseParams, Ends, Model, ModelError, ModelInfo, Tables};
use crate::blocks::{AttentionShape, GateUp, GatedFfn, Qkv, StepGraph};
use crate::gguf::Metadata;
use crate::kv_cache::KvLayer;
use crate::moe::{Moe, MoeParams};
use crate::rope::RopeConfig;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// `general.architecture`.
pub const ARCH: &str = "llama";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    Ok(Box::new(Decoder::load(
        metadata,
        requests,
        ARCH,
        RopeMode::Norm,
        QkNorm::None,
        Experts::OfFfnWidth,
    )?))
}

/// Whether queries and keys are normalised per head before rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// With the weights `attn_q_norm` and `attn_k_norm`.
    PerHead,
}

/// Whether layers may have experts in place of an FFN, and how wide these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// They may not.
    None,
    /// As wide as the FFN would be.
    OfFfnWidth,
    /// As wide as the file says, or an equal share of the FFN; there must be some.
    OfOwnWidth,
}

impl Experts {
    /// Reads the experts of a file.
    fn read(self, metadata: &Metadata, p: &DenseParams) -> Result<Option<MoeParams>, ModelError> {
        let (arch, n_layers) = (&p.info.arch, p.info.n_layers);
        let params = MoeParams::read(metadata, arch, n_layers, |stated, k| match self {
            Self::None | Self::OfFfnWidth => p.d_ff,
            Self::OfOwnWidth => stated.unwrap_or(p.d_ff / k),
        })?;
        let expected = match (self, &params) {
            (Self::None, Some(_)) => "0: this architecture has no experts",
            (Self::OfOwnWidth, None) => "the number of experts, at least 1",
            (Self::None, None) | (Self::OfFfnWidth, _) | (Self::OfOwnWidth, Some(_)) => {
                return Ok(params);
            }
        };
        let found = params.map_or(0, |params| params.n_experts);
        Err(super::refuse(
            format!("{arch}.expert_count"),
            found,
            expected,
        ))
    }
}

/// The pre-norm decoder with SwiGLU: `llama`, and with other switches `qwen2`, `qwen3` and `qwen3moe`.
#[derive(Debug)]
pub struct Decoder {
    params: DenseParams,
    attention: AttentionShape,
    rope: RopeConfig,
    ends: Ends,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    attn_norm: WeightId,
    qkv: Qkv,
    /// Norms of queries and keys.
    qk_norm: Option<[WeightId; 2]>,
    attn_output: Linear,
    ffn_norm: WeightId,
    ffn: Ffn,
}

#[derive(Debug)]
enum Ffn {
    Dense(GatedFfn),
    Experts(Box<Moe>),
}

impl Decoder {
    /// Reads hyper-parameters and requests tensors.
    ///
    /// # Errors
    /// Hyper-parameters or tensors that do not fit.
    pub fn load(
        metadata: &Metadata,
        requests: &mut Requests<'_>,
        arch: &str,
        mode: RopeMode,
        qk_norm: QkNorm,
        experts: Experts,
    ) -> Result<Self, ModelError> {
        let mut params = DenseParams::read(metadata, requests, arch)?;
        let moe = experts.read(metadata, &params)?;
        if let Some(moe) = &moe {
            params.info = params.info.with_experts(moe);
        }
        let mut rope =
            RopeConfig::from_metadata(metadata, arch, mode, params.k_dim, params.info.n_ctx_train)?;
        if let Some(factors) = requests.floats("rope_freqs.weight", rope.n_rot / 2)? {
            rope.factors = factors;
        }
        let ends = Ends::load(requests, &params.info)?;
        let layers = (0..params.info.n_layers)
            .map(|layer| Layer::load(requests, &params, layer, qk_norm, moe.as_ref()))
            .collect::<Result<_, _>>()?;
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
            rope,
            ends,
            layers,
        })
    }
}

/// Requests the projections of an attention layer, split or fused.
pub(super) fn load_qkv(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    layer: usize,
) -> Result<Qkv, WeightError> {
    let d = p.info.d_model;
    let name = |what: &str| format!("blk.{layer}.{what}");
    let (q, k, v) = (
        p.n_heads * p.k_dim,
        p.n_kv_heads * p.k_dim,
        p.n_kv_heads * p.v_dim,
    );
    if requests.has(&name("attn_qkv.weight")) {
        let mut fused = requests.linear(&name("attn_qkv"), q + k + v, d)?;
        if fused.bias.is_none() {
            fused.bias = requests.opt_joined(&[
                (&name("attn_q.bias"), q),
                (&name("attn_k.bias"), k),
                (&name("attn_v.bias"), v),
            ])?;
        }
        return Ok(Qkv::Fused(fused));
    }
    let parts = [("attn_q", q), ("attn_k", k), ("attn_v", v)].map(|(part, n)| (name(part), n));
    let parts = parts.each_ref().map(|(part, n)| (part.as_str(), *n));
    if let Some(stacked) = requests.opt_stacked(&name("attn_qkv"), &parts, d)? {
        return Ok(Qkv::Fused(stacked));
    }
    Ok(Qkv::Split {
        q: requests.linear(&name("attn_q"), q, d)?,
        k: requests.linear(&name("attn_k"), k, d)?,
        v: requests.linear(&name("attn_v"), v, d)?,
    })
}

/// Requests the matrices of a gated FFN.
pub(super) fn load_ffn(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    layer: usize,
    kind: GluKind,
) -> Result<GatedFfn, WeightError> {
    let (d, d_ff) = (p.info.d_model, p.d_ff);
    let name = |what: &str| format!("blk.{layer}.{what}");
    let (gate, up) = (name("ffn_gate"), name("ffn_up"));
    let stacked = requests.opt_stacked(&name("ffn_gate_up"), &[(&gate, d_ff), (&up, d_ff)], d)?;
    let gate_up = match stacked {
        Some(linear) => GateUp::Stacked(linear),
        None => GateUp::Split {
            gate: requests.linear(&gate, d_ff, d)?,
            up: requests.linear(&up, d_ff, d)?,
        },
    };
    Ok(GatedFfn {
        gate_up,
        d_ff,
        down: requests.linear(&name("ffn_down"), d, d_ff)?,
        kind,
    })
}

impl Layer {
    fn load(
        requests: &mut Requests<'_>,
        p: &DenseParams,
        layer: usize,
        qk_norm: QkNorm,
        moe: Option<&MoeParams>,
    ) -> Result<Self, WeightError> {
        let d = p.info.d_model;
        let name = |what: &str| format!("blk.{layer}.{what}");
        Ok(Self {
            attn_norm: requests.vector(&name("attn_norm"), d)?,
            qkv: load_qkv(requests, p, layer)?,
            qk_norm: match qk_norm {
                QkNorm::None => None,
                QkNorm::PerHead => Some([
                    requests.vector(&name("attn_q_norm"), p.k_dim)?,
                    requests.vector(&name("attn_k_norm"), p.k_dim)?,
                ]),
            },
            attn_output: requests.linear(&name("attn_output"), d, p.n_heads * p.v_dim)?,
            ffn_norm: requests.vector(&name("ffn_norm"), d)?,
            ffn: match moe {
                None => Ffn::Dense(load_ffn(requests, p, layer, GluKind::Swiglu)?),
                Some(moe) => Ffn::Experts(Box::new(Moe::load(
                    requests,
                    moe,
                    d,
                    layer,
                    GluKind::Swiglu,
                )?)),
            },
        })
    }
}

impl Model for Decoder {
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
        vec![layer; self.layers.len()]
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        vec![&self.rope]
    }

    fn build(&self, g: &mut StepGraph<'_>, tables: &Tables) -> Result<Option<ValueId>, GraphError> {
        let eps = self.params.eps;
        let rope_table = &tables.ropes[0];
        let mut x = g.embed(self.ends.token_embd, 1.0)?; // [n_tokens, d_model]
        for (index, layer) in self.layers.iter().enumerate() {
            let name = |what: &str| format!("blk.{index}.{what}");
            let h = g.rms_norm(&name("attn_norm"), x, layer.attn_norm, eps)?;
            let [mut q, mut k, v] = g.qkv(&layer.qkv, &self.attention, h)?; // [n_tokens, heads, dim]
            if let Some([q_norm, k_norm]) = layer.qk_norm {
                q = g.rms_norm(&name("attn_q_norm"), q, q_norm, eps)?;
                k = g.rms_norm(&name("attn_k_norm"), k, k_norm, eps)?;
            }
            let [q, k] = g.rope_qk(index, [q, k], &self.rope, rope_table)?;
            let a = g.attend(index, &self.attention, [q, k, v])?; // [n_tokens, n_heads * v_dim]
            let a = g.linear(&layer.attn_output, a)?;
            x = g.add(&name("attn_residual"), x, a)?;
            let h = g.rms_norm(&name("ffn_norm"), x, layer.ffn_norm, eps)?;
            x = match &layer.ffn {
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
