//! `deepseek32`: latent attention to the tokens that a lightning indexer selects, dense SwiGLU in the first layers, then
//! experts with a router by sigmoids and a shared expert.
//!
//! `Decoder` is also what `glm-dsa` is made of.

use gemel_core::DType;
use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::attention::MAX_HEAD_DIM;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::moe_route::Gate;
use gemel_core::ops::rope::RopeMode;

use super::hybrid::{load_shared_ffn, plain_metadata};
use super::llama::load_ffn;
use super::{DenseParams, Ends, Model, ModelError, ModelInfo, Tables, refuse};
use crate::blocks::{
    AttentionShape, GatedFfn, LatentAttention, LatentInput, LatentSizes, LightningIndexer,
    Selector, StepGraph,
};
use crate::gguf::Metadata;
use crate::kv_cache::{IndexLayer, KvLayer};
use crate::moe::{Moe, MoeParams, SharedFfn};
use crate::rope::RopeConfig;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// `general.architecture`.
pub const ARCH: &str = "deepseek32";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    let kind = Kind {
        index_rope: RopeMode::Neox,
        indexed: |_, _, n_layers| Ok(vec![true; n_layers]),
    };
    Ok(Box::new(Decoder::load(metadata, requests, ARCH, kind)?))
}

/// What the architectures differ in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Which channels of an indexer's heads form a pair.
    pub(super) index_rope: RopeMode,
    /// Which layers have an indexer of their own, from metadata, architecture, layers of the trunk.
    pub(super) indexed: fn(&Metadata, &str, usize) -> Result<Vec<bool>, ModelError>,
}

/// Most tokens that an indexer selects: far above any model.
const MAX_BUDGET: usize = 1 << 16;

/// The decoder of latent attention to selected tokens.
#[derive(Debug)]
pub(super) struct Decoder {
    info: ModelInfo,
    eps: f32,
    attention: AttentionShape,
    index: IndexLayer,
    rope: RopeConfig,
    /// The same angles for the pairs of the indexer.
    index_rope: RopeConfig,
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
    attention: LatentAttention,
    /// `None` where the layer attends to what the last one before it with an indexer selected.
    indexer: Option<LightningIndexer>,
    ffn_norm: WeightId,
    ffn: Ffn,
}

#[derive(Debug)]
enum Ffn {
    Dense(GatedFfn),
    Experts(Box<Moe>),
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

/// Hyper-parameters.
struct Params {
    dense: DenseParams,
    sizes: LatentSizes,
    /// Heads of an indexer and their channels.
    index: [usize; 2],
    budget: usize,
    /// Layers with a dense FFN, before those with experts.
    n_dense: usize,
    moe: Option<MoeParams>,
    /// Width of the shared expert, 0 for none.
    d_shared: usize,
}

impl Params {
    /// Reads and checks `ARCH.*`. `plain` counts only the layers of the trunk.
    fn read(
        plain: &Metadata,
        requests: &Requests<'_>,
        arch: &str,
        n_rot: usize,
    ) -> Result<Self, ModelError> {
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str, most: usize| -> Result<usize, ModelError> {
            let value = plain.u32(&key(name))? as usize;
            if value == 0 || value > most {
                return Err(refuse(key(name), value, format!("in 1..={most}")));
            }
            Ok(value)
        };
        let dense = DenseParams::read(plain, requests, arch)?;
        let sizes = latent_sizes(&dense, &size, arch, n_rot)?;
        let index = [
            size("attention.indexer.head_count", 1024)?,
            size("attention.indexer.key_length", MAX_HEAD_DIM)?,
        ];
        if index[1] < n_rot || !index[1].is_multiple_of(4) {
            return Err(refuse(
                key("attention.indexer.key_length"),
                index[1],
                format!("a multiple of 4 with the {n_rot} rotated channels (rope.dimension_count)"),
            ));
        }
        let budget = size("attention.indexer.top_k", MAX_BUDGET)?;

        let n_layers = dense.info.n_layers;
        let n_dense = plain.opt_u32(&key("leading_dense_block_count"))?;
        let n_dense = n_dense.unwrap_or(0) as usize;
        if n_dense > n_layers {
            let expected = format!("at most the {n_layers} layers");
            return Err(refuse(key("leading_dense_block_count"), n_dense, expected));
        }
        if n_dense > 0 && dense.d_ff == 0 {
            let expected = "the width of the dense layers, at least 1";
            return Err(refuse(key("feed_forward_length"), 0, expected));
        }
        let moe = MoeParams::read(plain, arch, n_layers, |stated, k| {
            stated.unwrap_or(dense.d_ff / k)
        })?;
        let moe = moe.map(|moe| moe.with_routing_keys(plain, arch, Gate::Sigmoid));
        let moe = moe.transpose()?;
        if n_dense < n_layers && moe.is_none() {
            let expected = "the number of experts, at least 1";
            return Err(refuse(key("expert_count"), 0, expected));
        }
        let n_shared = plain.opt_u32(&key("expert_shared_count"))?.unwrap_or(0) as usize;
        let d_shared = n_shared.saturating_mul(moe.as_ref().map_or(0, |moe| moe.d_ff));
        if d_shared > 1 << 20 {
            let expected = "so many that they are 1048576 wide together at most";
            return Err(refuse(key("expert_shared_count"), n_shared, expected));
        }
        Ok(Self {
            dense,
            sizes,
            index,
            budget,
            n_dense,
            moe,
            d_shared,
        })
    }

    /// Sizes, with the widest activation.
    fn info(&self) -> ModelInfo {
        let mut info = self.dense.info.clone();
        if let Some(moe) = &self.moe {
            info = info.with_experts(moe);
        }
        let LatentSizes {
            n_heads,
            q_rank,
            nope_dim,
            v_dim,
            ..
        } = self.sizes;
        let widest = [
            info.widest,
            2 * self.d_shared,
            q_rank + self.sizes.row_dim(),
            n_heads * self.sizes.row_dim(),
            n_heads * nope_dim.max(v_dim),
            self.index[0] * self.index[1],
        ];
        info.widest = widest.into_iter().max().unwrap_or(info.widest);
        info
    }
}

/// Sizes of latent attention, checked against each other.
fn latent_sizes(
    dense: &DenseParams,
    size: &dyn Fn(&str, usize) -> Result<usize, ModelError>,
    arch: &str,
    n_rot: usize,
) -> Result<LatentSizes, ModelError> {
    let key = |name: &str| format!("{arch}.attention.{name}");
    if dense.n_kv_heads != 1 {
        let expected = "1: all heads share a latent";
        return Err(refuse(key("head_count_kv"), dense.n_kv_heads, expected));
    }
    let kv_rank = size("attention.kv_lora_rank", MAX_HEAD_DIM)?;
    let row_dim = kv_rank + n_rot;
    if row_dim > MAX_HEAD_DIM || !kv_rank.is_multiple_of(4) || !row_dim.is_multiple_of(4) {
        return Err(refuse(
            key("kv_lora_rank"),
            kv_rank,
            format!(
                "a multiple of 4 that with {n_rot} rotated channels makes {MAX_HEAD_DIM} at most"
            ),
        ));
    }
    for (name, found, expected) in [
        ("key_length", dense.k_dim, row_dim),
        ("value_length", dense.v_dim, kv_rank),
    ] {
        if found != expected {
            let expected = format!("{expected}, the channels of the latent row that is cached");
            return Err(refuse(key(name), found, expected));
        }
    }
    let q_dim = size("attention.key_length_mla", 1024)?;
    if q_dim <= n_rot {
        let expected = format!("more than the {n_rot} rotated channels (rope.dimension_count)");
        return Err(refuse(key("key_length_mla"), q_dim, expected));
    }
    Ok(LatentSizes {
        n_heads: dense.n_heads,
        q_rank: size("attention.q_lora_rank", 1 << 16)?,
        kv_rank,
        nope_dim: q_dim - n_rot,
        rope_dim: n_rot,
        v_dim: size("attention.value_length_mla", 1024)?,
    })
}

/// Makes of a stretched rope what these models were trained with: returns the magnitude of scores, and leaves that of
/// queries and keys in `rope`.
///
/// With a factor `s` of the context and `m = rope.scaling.yarn_log_multiplier`, which files state times a tenth, scores
/// grow by `(1 + 0.1 m ln s)^2`; queries and keys by `(1 + 0.1 ln s) / (1 + 0.1 m ln s)`, 1 in the models there are.
fn stretch(metadata: &Metadata, arch: &str, rope: &mut RopeConfig) -> Result<f64, ModelError> {
    let multiplier = format!("{arch}.rope.scaling.yarn_log_multiplier");
    let multiplier = f64::from(metadata.opt_f32(&multiplier)?.unwrap_or(0.0)) / 0.1;
    if rope.ext_factor == 0.0 {
        return Ok(rope.attn_factor);
    }
    let grow = |m: f64| 1.0 + 0.1 * m * (1.0 / rope.freq_scale).ln();
    // The table multiplies by `grow(1)` itself.
    rope.attn_factor /= grow(multiplier);
    Ok(rope.attn_factor * grow(1.0) * grow(multiplier))
}

impl Decoder {
    /// Reads hyper-parameters and requests tensors.
    pub(super) fn load(
        metadata: &Metadata,
        requests: &mut Requests<'_>,
        arch: &str,
        kind: Kind,
    ) -> Result<Self, ModelError> {
        let (plain, n_mtp) = plain_metadata(metadata, arch)?;
        if n_mtp > 0 && !requests.has("blk.0.attn_norm.weight") {
            return Err(refuse(
                format!("{arch}.nextn_predict_layers"),
                n_mtp,
                "0 in a file on its own: this one has only the block that drafts for another file",
            ));
        }
        let n_rot = plain.u32(&format!("{arch}.rope.dimension_count"))? as usize;
        let params = Params::read(&plain, requests, arch, n_rot)?;
        let info = params.info();
        let n_layers = info.n_layers;
        let indexed = (kind.indexed)(metadata, arch, n_layers)?;
        let mut rope =
            RopeConfig::from_metadata(&plain, arch, RopeMode::Norm, n_rot, info.n_ctx_train)?;
        let magnitude = stretch(&plain, arch, &mut rope)?;
        let scale = magnitude * magnitude / (params.sizes.q_dim() as f64).sqrt();
        let ends = Ends::load(requests, &info)?;
        let layers = (0..n_layers)
            .map(|layer| Layer::load(requests, &params, layer, indexed[layer]))
            .collect::<Result<_, _>>()?;
        let mtp = (n_mtp > 0).then(|| MtpBlock::load(requests, &params, &ends, n_layers));
        let mtp = mtp.transpose()?;
        let mut found = Vec::new();
        let n_reused = indexed.iter().filter(|own| !**own).count();
        if n_reused > 0 {
            found.push(format!(
                "{n_reused} of {n_layers} attention layers without an indexer, which attend to what the last one before \
                 them selected"
            ));
        }
        if mtp.is_some() {
            found.push(format!("a prediction block (blk.{n_layers}), loaded"));
        }
        Ok(Self {
            info,
            eps: params.dense.eps,
            attention: params.sizes.attention(scale as f32),
            index: IndexLayer {
                dim: params.index[1],
                ratio: 1,
                budget: params.budget,
                // Eight bits would move a score by a third of a percent, and so half a percent of a selection of a few
                // thousand tokens: too many for what costs a fifth of the row beside it.
                dtype: DType::F16,
            },
            index_rope: RopeConfig {
                mode: kind.index_rope,
                ..rope.clone()
            },
            rope,
            ends,
            layers,
            mtp,
            found,
        })
    }
}

impl Layer {
    fn load(
        requests: &mut Requests<'_>,
        p: &Params,
        layer: usize,
        indexed: bool,
    ) -> Result<Self, WeightError> {
        let d = p.dense.info.d_model;
        let name = |what: &str| format!("blk.{layer}.{what}");
        Ok(Self {
            attn_norm: requests.vector(&name("attn_norm"), d)?,
            attention: load_attention(requests, p, layer)?,
            indexer: if indexed {
                Some(load_indexer(requests, p, layer)?)
            } else {
                None
            },
            ffn_norm: requests.vector(&name("ffn_norm"), d)?,
            ffn: match &p.moe {
                Some(moe) if layer >= p.n_dense => {
                    Ffn::Experts(Box::new(load_experts(requests, p, moe, layer)?))
                }
                _ => Ffn::Dense(load_ffn(requests, &p.dense, layer, GluKind::Swiglu)?),
            },
        })
    }
}

fn load_attention(
    requests: &mut Requests<'_>,
    p: &Params,
    layer: usize,
) -> Result<LatentAttention, WeightError> {
    let d = p.dense.info.d_model;
    let name = |what: &str| format!("blk.{layer}.{what}");
    let sizes = p.sizes;
    let (q, kv) = (name("attn_q_a"), name("attn_kv_a_mqa"));
    let parts = [(q.as_str(), sizes.q_rank), (kv.as_str(), sizes.row_dim())];
    let input = match requests.opt_stacked(&name("attn_qkv_a"), &parts, d)? {
        Some(both) => LatentInput::Stacked(both),
        None => LatentInput::Split {
            q: requests.linear(&q, sizes.q_rank, d)?,
            kv: requests.linear(&kv, sizes.row_dim(), d)?,
        },
    };
    let (n, kv_rank) = (sizes.n_heads, sizes.kv_rank);
    Ok(LatentAttention {
        sizes,
        input,
        norms: [
            requests.vector(&name("attn_q_a_norm"), sizes.q_rank)?,
            requests.vector(&name("attn_kv_a_norm"), kv_rank)?,
        ],
        q_b: requests.linear(&name("attn_q_b"), n * sizes.q_dim(), sizes.q_rank)?,
        k_b: requests.experts(&name("attn_k_b"), [n, kv_rank, sizes.nope_dim])?,
        v_b: requests.experts(&name("attn_v_b"), [n, sizes.v_dim, kv_rank])?,
        output: requests.linear(&name("attn_output"), d, n * sizes.v_dim)?,
    })
}

fn load_indexer(
    requests: &mut Requests<'_>,
    p: &Params,
    layer: usize,
) -> Result<LightningIndexer, WeightError> {
    let d = p.dense.info.d_model;
    let name = |what: &str| format!("blk.{layer}.indexer.{what}");
    let [n_heads, dim] = p.index;
    Ok(LightningIndexer {
        n_heads,
        dim,
        q_b: requests.linear(&name("attn_q_b"), n_heads * dim, p.sizes.q_rank)?,
        k: requests.linear(&name("attn_k"), dim, d)?,
        k_norm: [
            requests.vector(&name("k_norm"), dim)?,
            requests.table(&name("k_norm.bias"), &[dim])?,
        ],
        weights: requests.linear(&name("proj"), n_heads, d)?,
    })
}

/// Requests the experts of a layer.
fn load_experts(
    requests: &mut Requests<'_>,
    p: &Params,
    moe: &MoeParams,
    layer: usize,
) -> Result<Moe, WeightError> {
    let d = p.dense.info.d_model;
    let mut moe = Moe::load(requests, moe, d, layer, GluKind::Swiglu)?;
    if p.d_shared > 0 {
        moe.shared = Some(SharedFfn {
            ffn: load_shared_ffn(requests, d, p.d_shared, layer)?,
            gate: None,
        });
    }
    Ok(moe)
}

impl MtpBlock {
    fn load(
        requests: &mut Requests<'_>,
        p: &Params,
        ends: &Ends,
        layer: usize,
    ) -> Result<Self, WeightError> {
        let (d, n_vocab) = (p.dense.info.d_model, p.dense.info.n_vocab);
        let name = |what: &str| format!("blk.{layer}.nextn.{what}");
        let indexed = requests.has(&format!("blk.{layer}.indexer.attn_k.weight"));
        Ok(Self {
            layer: Layer::load(requests, p, layer, indexed)?,
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

impl Model for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<KvLayer> {
        let layers = self.layers.iter();
        layers
            .map(|layer| KvLayer {
                n_kv_heads: 1,
                k_dim: self.attention.k_dim,
                v_dim: self.attention.v_dim,
                shared_kv: true,
                window: 0,
                index: layer.indexer.as_ref().map(|_| self.index),
            })
            .collect()
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        vec![&self.rope]
    }

    fn found(&self) -> &[String] {
        &self.found
    }

    fn build(&self, g: &mut StepGraph<'_>, tables: &Tables) -> Result<Option<ValueId>, GraphError> {
        let eps = self.eps;
        let rope = (&self.rope, &tables.ropes[0]);
        let mut selector = 0;
        let mut x = g.embed(self.ends.token_embd, 1.0)?; // [n_tokens, d_model]
        for (index, layer) in self.layers.iter().enumerate() {
            let name = |what: &str| format!("blk.{index}.{what}");
            let h = g.rms_norm(&name("attn_norm"), x, layer.attn_norm, eps)?;
            let selected = match &layer.indexer {
                Some(indexer) => {
                    selector = index;
                    Selector::Own(indexer, &self.index_rope)
                }
                None => Selector::Earlier(selector),
            };
            let places = (index, index);
            let at = (&self.attention, selected);
            let a = g.latent_attention(places, &layer.attention, at, rope, eps, h)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stretched(specs: &[&str]) -> (f64, f64) {
        let mut metadata = Metadata::new();
        for spec in specs {
            metadata.apply_override(spec).unwrap();
        }
        let mut rope = RopeConfig::from_metadata(&metadata, "a", RopeMode::Norm, 64, 4096).unwrap();
        let scores = stretch(&metadata, "a", &mut rope).unwrap();
        (scores, rope.frequencies().1)
    }

    #[test]
    fn a_stretched_context_raises_scores_and_not_rows() {
        let yarn = [
            "a.rope.scaling.type=str:yarn",
            "a.rope.scaling.factor=float:40",
            "a.rope.scaling.original_context_length=int:4096",
        ];
        let grown = 1.0 + 0.1 * 40.0_f64.ln();
        let near = |found: (f64, f64), expected: (f64, f64)| {
            (found.0 - expected.0).abs() < 1e-6 && (found.1 - expected.1).abs() < 1e-6
        };
        // Files state a tenth of the multiplier.
        let published = [&yarn[..], &["a.rope.scaling.yarn_log_multiplier=float:0.1"]].concat();
        let found = stretched(&published);
        assert!(near(found, (grown, 1.0)), "{found:?}");
        let found = stretched(&yarn);
        assert!(near(found, (grown, grown)), "no multiplier: {found:?}");
        let found = stretched(&["a.rope.scaling.factor=float:4"]);
        assert!(near(found, (1.0, 1.0)), "linear: {found:?}");
    }
}
