//! `qwen35`: three gated delta nets to one layer of attention with an output gate, SwiGLU after each.
//!
//! `Hybrid` is also what the architectures with experts are made of.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::delta_rule_step::HeadMap;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::rope::RopeMode;

use super::llama::load_ffn;
use super::{DenseParams, Ends, Model, ModelError, ModelInfo, Tables, refuse};
use crate::blocks::{
    AttentionShape, DeltaNet, GateUp, GatedAttention, GatedFfn, GatedQkv, Gates, Qkvz, StepGraph,
};
use crate::gguf::{Metadata, Value};
use crate::kv_cache::KvLayer;
use crate::moe::{Moe, MoeParams, SharedFfn};
use crate::rope::RopeConfig;
use crate::state::{DeltaSizes, StateLayer};
use crate::weights::{Linear, Requests, WeightError, WeightId};

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

/// Most sizes of a delta net: far above any model, far below what overflows.
const MAX_HEADS: usize = 1024;

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

/// Experts of a model, and the width of the shared one.
struct Experts {
    moe: MoeParams,
    d_shared: usize,
}

impl Experts {
    /// Reads the experts that an architecture has, and refuses those that it has not.
    fn read(
        metadata: &Metadata,
        p: &DenseParams,
        wanted: bool,
    ) -> Result<Option<Self>, ModelError> {
        let arch = &p.info.arch;
        let moe = MoeParams::read(metadata, arch, p.info.n_layers, |stated, k| {
            stated.unwrap_or(p.d_ff / k)
        })?;
        let found = moe.as_ref().map_or(0, |moe| moe.n_experts);
        if wanted != moe.is_some() {
            let expected = if wanted {
                "the number of experts, at least 1"
            } else {
                "0: this architecture has no experts"
            };
            return Err(refuse(format!("{arch}.expert_count"), found, expected));
        }
        let Some(moe) = moe else {
            return Ok(None);
        };
        let key = format!("{arch}.expert_shared_feed_forward_length");
        let d_shared = metadata.opt_u32(&key)?.map_or(p.d_ff, |n| n as usize);
        if d_shared == 0 || d_shared > 1 << 20 {
            return Err(refuse(key, d_shared, "in 1..=1048576"));
        }
        Ok(Some(Self { moe, d_shared }))
    }
}

/// Requests the experts of a layer.
fn load_experts(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    experts: &Experts,
    layer: usize,
) -> Result<Moe, WeightError> {
    let (d, n) = (p.info.d_model, experts.d_shared);
    let name = |what: &str| format!("blk.{layer}.{what}");
    let mut moe = Moe::load(requests, &experts.moe, d, layer, GluKind::Swiglu)?;
    let (gate, up) = (name("ffn_gate_shexp"), name("ffn_up_shexp"));
    let parts = [(gate.as_str(), n), (up.as_str(), n)];
    let gate_up = match requests.opt_stacked(&name("ffn_gate_up_shexp"), &parts, d)? {
        Some(both) => GateUp::Stacked(both),
        None => GateUp::Split {
            gate: requests.linear(&gate, n, d)?,
            up: requests.linear(&up, n, d)?,
        },
    };
    moe.shared = Some(SharedFfn {
        ffn: GatedFfn {
            gate_up,
            d_ff: n,
            down: requests.linear(&name("ffn_down_shexp"), d, n)?,
            kind: GluKind::Swiglu,
        },
        gate: Some(requests.row(&name("ffn_gate_inp_shexp"), d)?),
    });
    Ok(moe)
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

/// Sizes of the delta nets, and the taps of their convolution.
fn delta_sizes(metadata: &Metadata, arch: &str) -> Result<(DeltaSizes, usize), ModelError> {
    let key = |name: &str| format!("{arch}.ssm.{name}");
    let size = |name: &str, most: usize| -> Result<usize, ModelError> {
        let value = metadata.u32(&key(name))? as usize;
        if value == 0 || value > most {
            return Err(refuse(key(name), value, format!("in 1..={most}")));
        }
        Ok(value)
    };
    let n_taps = size("conv_kernel", 64)?;
    let dim = size("state_size", 1024)?;
    let n_v_heads = size("time_step_rank", MAX_HEADS)?;
    let n_k_heads = size("group_count", MAX_HEADS)?;
    let inner = size("inner_size", MAX_HEADS * 1024)?;
    if !n_v_heads.is_multiple_of(n_k_heads) {
        return Err(refuse(
            key("group_count"),
            n_k_heads,
            format!("a divisor of the {n_v_heads} value heads (ssm.time_step_rank)"),
        ));
    }
    if inner != n_v_heads * dim {
        return Err(refuse(
            key("inner_size"),
            inner,
            format!("{n_v_heads} heads of {dim} channels (ssm.time_step_rank * ssm.state_size)"),
        ));
    }
    let sizes = DeltaSizes {
        n_k_heads,
        n_v_heads,
        k_dim: dim,
        v_dim: dim,
    };
    Ok((sizes, n_taps))
}

/// Which layers are recurrent: a list of the file, or all but every n-th.
fn recurrent_layers(
    metadata: &Metadata,
    arch: &str,
    n_layers: usize,
    n_blocks: usize,
) -> Result<Vec<bool>, ModelError> {
    let key = format!("{arch}.attention.recurrent_layers");
    if let Some(list) = metadata.opt_bools(&key)? {
        if list.len() != n_blocks && list.len() != n_layers {
            let found = format!("a list of {}", list.len());
            return Err(refuse(
                key,
                found,
                format!("one for each of {n_blocks} blocks"),
            ));
        }
        return Ok(list[..n_layers].to_vec());
    }
    let key = format!("{arch}.full_attention_interval");
    let interval = metadata.opt_u32(&key)?.unwrap_or(4) as usize;
    if interval == 0 {
        return Err(refuse(key, interval, "1 or more"));
    }
    Ok((1..=n_layers)
        .map(|n| !n.is_multiple_of(interval))
        .collect())
}

/// The metadata with what the dense part expects: only trunk blocks are counted, and one number of key heads, though
/// some files list 0 for recurrent layers. Also returns the number of prediction blocks.
fn plain_metadata(metadata: &Metadata, arch: &str) -> Result<(Metadata, usize), ModelError> {
    let mut plain = metadata.clone();
    let key = |name: &str| format!("{arch}.{name}");
    let n_blocks = metadata.u32(&key("block_count"))?;
    let n_mtp = metadata.opt_u32(&key("nextn_predict_layers"))?.unwrap_or(0);
    if n_mtp > 1 || n_mtp >= n_blocks {
        return Err(refuse(
            key("nextn_predict_layers"),
            n_mtp,
            format!("at most one of the {n_blocks} blocks"),
        ));
    }
    plain.insert(key("block_count"), Value::U32(n_blocks - n_mtp));
    let kv_key = key("attention.head_count_kv");
    if let Some(Value::Array(_)) = metadata.get(&kv_key) {
        let mut heads: Vec<u32> = metadata
            .i32s(&kv_key)?
            .into_iter()
            .filter_map(|n| u32::try_from(n).ok().filter(|&n| n > 0))
            .collect();
        heads.dedup();
        if let [n] = heads[..] {
            plain.insert(kv_key, Value::U32(n));
        }
    }
    Ok((plain, n_mtp as usize))
}

/// The sections of rope. Some files leave the last of the four out.
fn sections(metadata: &Metadata, arch: &str) -> Result<[u32; 4], ModelError> {
    let key = format!("{arch}.rope.dimension_sections");
    let list = metadata.i32s(&key)?;
    let sections: Vec<u32> = list
        .iter()
        .filter_map(|&n| u32::try_from(n).ok().filter(|&n| n <= 1 << 10))
        .collect();
    let sum: u32 = sections.iter().sum();
    match sections[..] {
        [t, h, w] if sum > 0 && list.len() == 3 => Ok([t, h, w, 0]),
        [t, h, w, e] if sum > 0 && list.len() == 4 => Ok([t, h, w, e]),
        _ => Err(refuse(
            key,
            format!("{list:?}"),
            "three or four numbers of pairs, not all 0",
        )),
    }
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
        let mut found = Vec::new();
        if mtp.is_some() {
            found.push(format!("a prediction block (blk.{n_layers}), loaded"));
        }
        for (prefix, what) in [
            ("mtp.", "of a prediction block under its original names"),
            ("v.", "of a vision tower"),
            ("mm.", "of a vision projector"),
        ] {
            let n = requests.count(prefix);
            if n > 0 {
                found.push(format!("{n} tensors {what}, left in the file"));
            }
        }
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

/// What all delta nets of a model share.
struct Net {
    sizes: DeltaSizes,
    n_taps: usize,
    map: HeadMap,
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

fn load_attention(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    layer: usize,
) -> Result<GatedAttention, WeightError> {
    let d = p.info.d_model;
    let name = |what: &str| format!("blk.{layer}.{what}");
    let (q, kv) = (2 * p.n_heads * p.k_dim, p.n_kv_heads * p.k_dim);
    let parts = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)].map(|(part, n)| (name(part), n));
    let parts = parts.each_ref().map(|(part, n)| (part.as_str(), *n));
    let qkv = if requests.has(&name("attn_qkv.weight")) {
        GatedQkv::Fused(requests.linear(&name("attn_qkv"), q + 2 * kv, d)?)
    } else if let Some(stacked) = requests.opt_stacked(&name("attn_qkv"), &parts, d)? {
        GatedQkv::Fused(stacked)
    } else {
        GatedQkv::Split {
            q: requests.linear(parts[0].0, q, d)?,
            k: requests.linear(parts[1].0, kv, d)?,
            v: requests.linear(parts[2].0, kv, d)?,
        }
    };
    Ok(GatedAttention {
        qkv,
        qk_norm: [
            requests.vector(&name("attn_q_norm"), p.k_dim)?,
            requests.vector(&name("attn_k_norm"), p.k_dim)?,
        ],
        output: requests.linear(&name("attn_output"), d, p.n_heads * p.v_dim)?,
    })
}

fn load_delta(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    net: &Net,
    layer: usize,
) -> Result<DeltaNet, WeightError> {
    let d = p.info.d_model;
    let name = |what: &str| format!("blk.{layer}.{what}");
    let sizes = net.sizes;
    let (n_channels, inner) = (sizes.n_channels(), sizes.n_v_heads * sizes.v_dim);
    Ok(DeltaNet {
        sizes,
        map: net.map,
        eps: p.eps,
        qkvz: load_qkvz(requests, sizes, layer, d)?,
        gates: load_gates(requests, sizes, layer, d)?,
        conv: requests.table(&name("ssm_conv1d.weight"), &[n_channels, net.n_taps])?,
        n_taps: net.n_taps,
        a: requests.table(&name("ssm_a"), &[sizes.n_v_heads])?,
        dt: match requests.opt_vector(&name("ssm_dt.bias"), sizes.n_v_heads)? {
            Some(dt) => dt,
            // Some files leave the suffix out.
            None => requests.table(&name("ssm_dt"), &[sizes.n_v_heads])?,
        },
        norm: requests.vector(&name("ssm_norm"), sizes.v_dim)?,
        output: requests.linear(&name("ssm_out"), d, inner)?,
    })
}

fn load_qkvz(
    requests: &mut Requests<'_>,
    sizes: DeltaSizes,
    layer: usize,
    d: usize,
) -> Result<Qkvz, WeightError> {
    let name = |what: &str| format!("blk.{layer}.{what}");
    let (n_channels, inner) = (sizes.n_channels(), sizes.n_v_heads * sizes.v_dim);
    let (qkv, z) = (name("attn_qkv"), name("attn_gate"));
    if let Some(rows) = legacy_rows(sizes)
        && requests.has(&name("ssm_in.weight"))
    {
        let all = requests.reordered(&name("ssm_in"), &rows, n_channels + inner, d)?;
        return Ok(Qkvz::Fused(all));
    }
    let parts = [(qkv.as_str(), n_channels), (z.as_str(), inner)];
    Ok(match requests.opt_stacked(&name("attn_qkvz"), &parts, d)? {
        Some(all) => Qkvz::Fused(all),
        None => Qkvz::Split {
            qkv: requests.linear(&qkv, n_channels, d)?,
            z: requests.linear(&z, inner, d)?,
        },
    })
}

/// Rows (first, number) of a matrix that lists queries, keys, values and gates key head by key head, in the order
/// queries, keys, values, gates. `None` where that would straddle tiles.
fn legacy_rows(sizes: DeltaSizes) -> Option<Vec<(usize, usize)>> {
    let DeltaSizes {
        n_k_heads,
        n_v_heads,
        k_dim,
        v_dim,
    } = sizes;
    let values = n_v_heads / n_k_heads * v_dim;
    let group = 2 * k_dim + 2 * values;
    let parts = [
        (0, k_dim),
        (k_dim, k_dim),
        (2 * k_dim, values),
        (2 * k_dim + values, values),
    ];
    let fits = k_dim.is_multiple_of(8) && values.is_multiple_of(8);
    fits.then(|| {
        let rows = parts
            .into_iter()
            .flat_map(|(first, n)| (0..n_k_heads).map(move |head| (head * group + first, n)));
        rows.collect()
    })
}

fn load_gates(
    requests: &mut Requests<'_>,
    sizes: DeltaSizes,
    layer: usize,
    d: usize,
) -> Result<Gates, WeightError> {
    let name = |what: &str| format!("blk.{layer}.{what}");
    let n = sizes.n_v_heads;
    if requests.has(&name("ssm_ba.weight")) {
        return Ok(Gates::Grouped(requests.linear(
            &name("ssm_ba"),
            2 * n,
            d,
        )?));
    }
    let (beta, alpha) = (name("ssm_beta"), name("ssm_alpha"));
    let parts = [(beta.as_str(), n), (alpha.as_str(), n)];
    Ok(match requests.opt_stacked(&name("ssm_ba"), &parts, d)? {
        Some(both) => Gates::Stacked(both),
        None => Gates::Split {
            beta: requests.linear(&beta, n, d)?,
            alpha: requests.linear(&alpha, n, d)?,
        },
    })
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
