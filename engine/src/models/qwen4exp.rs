//! `qwen4exp`: gated delta nets, and in every fourth layer attention to selected blocks, each followed by experts; the
//! residual has several streams, and one layer adds embeddings of n-grams.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::delta_rule_step::HeadMap;
use gemel_core::ops::gated_rms_norm::GateKind;
use gemel_core::ops::index_pool;
use gemel_core::ops::moe_route;
use gemel_core::ops::rope::RopeMode;
use gemel_core::{DType, PAGE};

use super::hybrid::{
    Experts, Net, delta_sizes, found_beside, load_attention, load_delta, load_experts,
    plain_metadata, recurrent_layers, sections,
};
use super::{DenseParams, Model, ModelError, ModelInfo, Tables, load_embedding_and_head, refuse};
use crate::blocks::{
    AttentionShape, BlockIndexer, DeltaNet, GatedAttention, NgramLayer, StepGraph, StreamMean,
    StreamMixer, Streams,
};
use crate::gguf::Metadata;
use crate::kv_cache::{IndexLayer, KvLayer};
use crate::moe::Moe;
use crate::ngram::{NgramHashes, NgramTable};
use crate::rope::RopeConfig;
use crate::state::StateLayer;
use crate::weights::{Linear, Requests, WeightId};

/// `general.architecture`.
pub const ARCH: &str = "qwen4exp";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    Qwen4Exp::load(metadata, requests).map(|model| -> Box<dyn Model> { Box::new(model) })
}

#[derive(Debug)]
struct Qwen4Exp {
    params: Params,
    token_embd: WeightId,
    layers: Vec<Layer>,
    ngrams: Option<NgramTable>,
    output_mix: StreamMean,
    output: Linear,
    /// Kept for drafting.
    #[allow(dead_code, reason = "loaded with the trunk, for drafting")]
    mtp: Option<MtpBlock>,
    found: Vec<String>,
}

/// Hyper-parameters.
#[derive(Debug)]
struct Params {
    dense: DenseParams,
    streams: Streams,
    experts: Experts,
    net: Net,
    recurrent: Vec<bool>,
    attention: AttentionShape,
    rope: RopeConfig,
    index: IndexParams,
}

/// The indexers of the layers that select.
#[derive(Debug)]
struct IndexParams {
    n_heads: usize,
    dim: usize,
    top_k: usize,
    /// Tokens of a block of each layer, prediction blocks included; 0 where everything is attended to.
    ratios: Vec<usize>,
}

#[derive(Debug)]
struct Layer {
    ngram: Option<NgramLayer>,
    attn_mix: StreamMixer,
    mixer: Mixer,
    ffn_mix: StreamMixer,
    moe: Moe,
}

/// What mixes tokens in a layer, with its place among the layers of its kind.
#[derive(Debug)]
enum Mixer {
    Attention(usize, Box<GatedAttention>),
    Delta(usize, Box<DeltaNet>),
}

/// The block that predicts the token after the next from a residual and the next token.
#[derive(Debug)]
#[allow(dead_code, reason = "loaded with the trunk, for drafting")]
struct MtpBlock {
    layer: Layer,
    /// From embedding and a stream, `[d_model, 2 * d_model]`.
    eh_proj: Linear,
    enorm: WeightId,
    /// A weight for every channel of every stream.
    hnorm: WeightId,
    /// Final mix; the trunk's where the block has none.
    head_mix: StreamMean,
}

/// A number of a file in 1 to `most`.
fn size(metadata: &Metadata, name: &str, most: usize) -> Result<usize, ModelError> {
    let key = format!("{ARCH}.{name}");
    let value = metadata.u32(&key)? as usize;
    if value == 0 || value > most {
        return Err(refuse(key, value, format!("in 1..={most}")));
    }
    Ok(value)
}

/// Streams of the residual; `eps` is that of all norms.
fn streams(metadata: &Metadata, d_model: usize, eps: f32) -> Result<Streams, ModelError> {
    let n = size(metadata, "hyper_connection.count", 64)?;
    if n == 1 {
        let key = format!("{ARCH}.hyper_connection.count");
        return Err(refuse(key, n, "2 or more"));
    }
    Ok(Streams {
        n,
        d_model,
        low_rank: size(metadata, "hyper_connection.low_rank", 1 << 16)?,
        eps,
    })
}

impl IndexParams {
    fn read(metadata: &Metadata, n_blocks: usize, n_rot: usize) -> Result<Self, ModelError> {
        let (n_heads, dim) = (
            "attention.indexer.head_count",
            "attention.indexer.key_length",
        );
        let (n_heads, dim) = (
            size(metadata, n_heads, 1024)?,
            size(metadata, dim, index_pool::MAX_DIM)?,
        );
        if !dim.is_multiple_of(2) || dim < n_rot {
            let key = format!("{ARCH}.attention.indexer.key_length");
            let expected = format!("even and at least the {n_rot} rotated channels");
            return Err(refuse(key, dim, expected));
        }
        let top_k = size(metadata, "attention.indexer.top_k", 1 << 24)?;
        let key = format!("{ARCH}.attention.compress_ratios");
        let ratios: Vec<usize> = match metadata.opt_per_layer_u32(&key, n_blocks)? {
            Some(ratios) => ratios.into_iter().map(|n| n as usize).collect(),
            None => vec![0; n_blocks],
        };
        let mut used: Vec<usize> = ratios.iter().copied().filter(|&n| n > 0).collect();
        used.sort_unstable();
        used.dedup();
        match used[..] {
            [] => {}
            [n] if n > 1 && n <= PAGE && n.is_power_of_two() && top_k.is_multiple_of(n) => {}
            _ => {
                let expected = format!(
                    "0, or in all layers the same power of two in 2..={PAGE} that divides attention.indexer.top_k, {top_k}"
                );
                return Err(refuse(key, format!("{used:?}"), expected));
            }
        }
        Ok(Self {
            n_heads,
            dim,
            top_k,
            ratios,
        })
    }
}

impl Params {
    fn read(
        metadata: &Metadata,
        requests: &Requests<'_>,
    ) -> Result<(Self, Option<usize>), ModelError> {
        let (plain, n_mtp) = plain_metadata(metadata, ARCH)?;
        size(metadata, "expert_count", moe_route::MAX_EXPERTS)?;
        let mut dense = DenseParams::read(&plain, requests, ARCH)?;
        let (n_layers, d_model) = (dense.info.n_layers, dense.info.d_model);
        if n_mtp > 0 && !requests.has("blk.0.hc_attn_norm.weight") {
            return Err(refuse(
                format!("{ARCH}.nextn_predict_layers"),
                n_mtp,
                "0 in a file on its own: this one has only the block that drafts for another file",
            ));
        }
        if dense.k_dim != dense.v_dim {
            return Err(refuse(
                format!("{ARCH}.attention.value_length"),
                dense.v_dim,
                format!("the {} channels of a key", dense.k_dim),
            ));
        }
        let Some(experts) = Experts::read(&plain, &dense, true)? else {
            return Err(refuse(format!("{ARCH}.expert_count"), 0, "1 or more"));
        };
        let (sizes, n_taps) = delta_sizes(metadata, ARCH)?;
        let mode = RopeMode::Imrope(sections(metadata, ARCH)?);
        let rope =
            RopeConfig::from_metadata(&plain, ARCH, mode, dense.k_dim, dense.info.n_ctx_train)?;
        let streams = streams(metadata, d_model, dense.eps)?;
        let index = IndexParams::read(metadata, n_layers + n_mtp, rope.n_rot)?;
        dense.info = dense.info.with_experts(&experts.moe);
        let widest = [
            dense.info.widest,
            streams.width(),
            streams.low_rank + streams.n,
            2 * experts.d_shared,
            sizes.n_channels() + sizes.n_v_heads * sizes.v_dim,
            (2 * dense.n_heads + 2 * dense.n_kv_heads) * dense.k_dim,
            (index.n_heads + 1) * index.dim,
        ];
        dense.info.widest = widest.into_iter().max().unwrap_or_default();
        let params = Self {
            attention: AttentionShape {
                n_heads: dense.n_heads,
                n_kv_heads: dense.n_kv_heads,
                k_dim: dense.k_dim,
                v_dim: dense.v_dim,
                scale: 1.0 / (dense.k_dim as f32).sqrt(),
                softcap: 0.0,
                window: 0,
            },
            streams,
            experts,
            net: Net {
                sizes,
                n_taps,
                map: HeadMap::Tiled,
                gate: GateKind::Sigmoid,
            },
            recurrent: recurrent_layers(metadata, ARCH, n_layers, n_layers + n_mtp)?,
            rope,
            index,
            dense,
        };
        Ok((params, (n_mtp > 0).then_some(n_layers)))
    }
}

/// The table of n-gram embeddings, and where and how a layer adds them.
struct Ngrams {
    table: NgramTable,
    layer: usize,
    n_taps: usize,
}

impl Ngrams {
    fn load(
        metadata: &Metadata,
        requests: &mut Requests<'_>,
        recurrent: &[bool],
    ) -> Result<Option<Self>, ModelError> {
        let key = |name: &str| format!("{ARCH}.ple.{name}");
        if !metadata.contains(&key("layers")) {
            return Ok(None);
        }
        // One layer, as a number or as a list.
        let layers = match metadata.opt_u32(&key("layers")) {
            Ok(layer) => layer.into_iter().map(u64::from).collect(),
            Err(_) => metadata.u64s(&key("layers"))?,
        };
        let layer = match layers[..] {
            [] => return Ok(None),
            [layer] => layer as usize,
            _ => usize::MAX,
        };
        if recurrent.get(layer) != Some(&true) {
            let expected = format!(
                "one layer of the {} that is a delta net, counted from 0",
                recurrent.len()
            );
            return Err(refuse(key("layers"), format!("{layers:?}"), expected));
        }
        let n_taps = size(metadata, "ple.conv_kernel", 64)?;
        let hashes = read_hashes(metadata)?;
        let width = size(metadata, "embedding_length_per_layer_input", 1 << 16)?;
        let needed = hashes.heads.iter().map(|[n, first]| n + first).max();
        let needed = needed.unwrap_or_default() as usize;
        let rows = requests.row_table("per_layer_token_embd", needed, width)?;
        Ok(Some(Self {
            table: NgramTable { hashes, rows },
            layer,
            n_taps,
        }))
    }
}

/// How tokens name rows of the table.
fn read_hashes(metadata: &Metadata) -> Result<NgramHashes, ModelError> {
    let key = |name: &str| format!("{ARCH}.ple.{name}");
    let longest = size(metadata, "ple.ngram_size", 8)?;
    if longest < 2 {
        return Err(refuse(key("ngram_size"), longest, "in 2..=8"));
    }
    let n_heads_per_ngram = size(metadata, "ple.heads_per_ngram", 64)?;
    let n_heads = (longest - 1) * n_heads_per_ngram;
    if n_heads > 64 {
        let most = 64 / (longest - 1);
        let expected = format!("at most {most} for n-grams of up to {longest} tokens");
        return Err(refuse(key("heads_per_ngram"), n_heads_per_ngram, expected));
    }
    // A list that is too short is refused: to go on with zeros would read wrong rows.
    let list = |name: &str, n: usize| -> Result<Vec<u64>, ModelError> {
        let mut list = metadata.u64s(&key(name))?;
        if list.len() < n {
            let found = format!("a list of {}", list.len());
            return Err(refuse(key(name), found, format!("a list of {n}")));
        }
        list.truncate(n);
        Ok(list)
    };
    let multipliers = list("layer_multipliers", longest)?;
    let (sizes, offsets) = (
        list("head_vocab_sizes", n_heads)?,
        list("head_offsets", n_heads)?,
    );
    let heads = sizes.into_iter().zip(offsets).map(|(n, first)| {
        let end = n.checked_add(first).and_then(|end| i32::try_from(end).ok());
        if n == 0 || end.is_none() {
            let found = format!("{n} from {first} on");
            let expected = "1 row or more, which end before row 2147483648";
            return Err(refuse(key("head_vocab_sizes"), found, expected));
        }
        Ok([n as u32, first as u32])
    });
    let eos = metadata.u32(&key("eos_token_id"))?;
    if i32::try_from(eos).is_err() {
        return Err(refuse(key("eos_token_id"), eos, "below 2147483648"));
    }
    Ok(NgramHashes {
        eos,
        n_heads_per_ngram,
        multipliers,
        heads: heads.collect::<Result<_, _>>()?,
    })
}

impl Layer {
    fn load(
        requests: &mut Requests<'_>,
        p: &Params,
        layer: usize,
        ngrams: Option<&Ngrams>,
    ) -> Result<Self, ModelError> {
        let name = |what: &str| format!("blk.{layer}.{what}");
        let ngram = ngrams
            .filter(|ngrams| ngrams.layer == layer)
            .map(|Ngrams { table, n_taps, .. }| {
                let d_in = table.n_channels();
                let conv = [*n_taps, table.hashes.longest()];
                NgramLayer::load(requests, &name("ple"), p.streams, d_in, conv)
            })
            .transpose()?;
        let before = p.recurrent.iter().take(layer);
        let n_deltas = before.filter(|&&delta| delta).count();
        let mixer = if p.recurrent.get(layer) == Some(&true) {
            let net = load_delta(requests, &p.dense, &p.net, layer)?;
            Mixer::Delta(n_deltas, Box::new(net))
        } else {
            let mut attention = load_attention(requests, &p.dense, layer)?;
            if p.index.ratios[layer] > 0 {
                let sizes = [p.index.n_heads, p.index.dim];
                let d_model = p.streams.d_model;
                attention.indexer = Some(BlockIndexer::load(
                    requests,
                    &name("indexer"),
                    sizes,
                    d_model,
                )?);
            }
            Mixer::Attention(layer - n_deltas, Box::new(attention))
        };
        Ok(Self {
            ngram,
            attn_mix: StreamMixer::load(requests, &name("hc_attn"), p.streams)?,
            mixer,
            ffn_mix: StreamMixer::load(requests, &name("hc_ffn"), p.streams)?,
            moe: load_experts(requests, &p.dense, &p.experts, layer)?,
        })
    }
}

impl MtpBlock {
    fn load(
        requests: &mut Requests<'_>,
        p: &Params,
        output_mix: &StreamMean,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let d = p.streams.d_model;
        let name = |what: &str| format!("blk.{layer}.nextn.{what}");
        Ok(Self {
            layer: Layer::load(requests, p, layer, None)?,
            eh_proj: requests.linear(&name("eh_proj"), d, 2 * d)?,
            enorm: requests.vector(&name("enorm"), d)?,
            hnorm: p.streams.vector(requests, &name("hnorm"))?,
            head_mix: if requests.has(&name("hc_head_norm.weight")) {
                StreamMean::load(requests, &name("hc_head"), p.streams)?
            } else {
                output_mix.clone()
            },
        })
    }
}

impl Qwen4Exp {
    fn load(metadata: &Metadata, requests: &mut Requests<'_>) -> Result<Self, ModelError> {
        let (mut params, mtp) = Params::read(metadata, requests)?;
        let ngrams = Ngrams::load(metadata, requests, &params.recurrent)?;
        let info = &mut params.dense.info;
        if let Some(Ngrams { table, .. }) = &ngrams {
            info.widest = info.widest.max(table.n_channels());
        }
        let (token_embd, output) = load_embedding_and_head(requests, info)?;
        let layers = (0..info.n_layers)
            .map(|layer| Layer::load(requests, &params, layer, ngrams.as_ref()))
            .collect::<Result<_, _>>()?;
        let output_mix = StreamMean::load(requests, "output_hc", params.streams)?;
        Ok(Self {
            mtp: mtp
                .map(|layer| MtpBlock::load(requests, &params, &output_mix, layer))
                .transpose()?,
            params,
            token_embd,
            layers,
            ngrams: ngrams.map(|ngrams| ngrams.table),
            output_mix,
            output,
            found: found_beside(requests, mtp),
        })
    }
}

impl Model for Qwen4Exp {
    fn info(&self) -> &ModelInfo {
        &self.params.dense.info
    }

    fn kv_layers(&self) -> Vec<KvLayer> {
        let (p, index) = (&self.params, &self.params.index);
        let attention = (p.recurrent.iter().zip(&index.ratios)).filter(|&(&delta, _)| !delta);
        let layer = |ratio: usize| KvLayer {
            n_kv_heads: p.attention.n_kv_heads,
            k_dim: p.attention.k_dim,
            v_dim: p.attention.v_dim,
            shared_kv: false,
            window: 0,
            index: (ratio > 0).then_some(IndexLayer {
                dim: index.dim,
                ratio,
                budget: index.top_k,
                dtype: DType::F16,
            }),
        };
        attention.map(|(_, &ratio)| layer(ratio)).collect()
    }

    /// The delta nets, then the layer of n-grams.
    fn state_layers(&self) -> Vec<StateLayer> {
        let delta = StateLayer {
            n_channels: self.params.net.sizes.n_channels(),
            history: self.params.net.n_taps - 1,
            delta: Some(self.params.net.sizes),
        };
        let n_delta = self.params.recurrent.iter().filter(|&&delta| delta).count();
        let ngrams = self.layers.iter().filter_map(|layer| layer.ngram.as_ref());
        let deltas = std::iter::repeat_n(delta, n_delta);
        deltas.chain(ngrams.map(NgramLayer::state)).collect()
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        vec![&self.params.rope]
    }

    fn ngrams(&self) -> Option<&NgramTable> {
        self.ngrams.as_ref()
    }

    fn found(&self) -> &[String] {
        &self.found
    }

    fn build(&self, g: &mut StepGraph<'_>, tables: &Tables) -> Result<Option<ValueId>, GraphError> {
        let p = &self.params;
        let rope = (&p.rope, &tables.ropes[0]);
        let n_delta = p.recurrent.iter().filter(|&&delta| delta).count();
        let embedded = match (&self.ngrams, &tables.ngrams) {
            (Some(table), Some(hashes)) => Some(g.ngram_rows(table, hashes)?),
            _ => None,
        };
        let x = g.embed(self.token_embd, 1.0)?; // [n_tokens, d_model]
        let mut r = g.streams(p.streams, x)?; // [n_tokens, n, d_model]
        for (layer, weights) in self.layers.iter().enumerate() {
            let name = |what: &str| format!("blk.{layer}.{what}");
            if let (Some(ngram), Some(e)) = (&weights.ngram, embedded) {
                r = g.ngram_layer((n_delta, layer), ngram, e, r)?;
            }
            let [m, inject] = g.mix_streams(&weights.attn_mix, r)?;
            let y = match &weights.mixer {
                Mixer::Attention(index, attention) => g.gated_attention(
                    (*index, layer),
                    attention,
                    &p.attention,
                    rope,
                    p.dense.eps,
                    m,
                )?,
                Mixer::Delta(index, net) => g.delta_net((*index, layer), net, m)?,
            };
            r = g.combine_streams(&name("attn_combine"), r, y, inject)?;
            let [m, inject] = g.mix_streams(&weights.ffn_mix, r)?;
            let y = weights.moe.build(g, &name("ffn"), m, None)?;
            r = g.combine_streams(&name("ffn_combine"), r, y, inject)?;
        }
        let Some(r) = g.output_streams(p.streams, r)? else {
            return Ok(None);
        };
        let y = g.stream_mean(&self.output_mix, r)?;
        g.linear(&self.output, y).map(Some) // [n_outputs, n_vocab]
    }
}
