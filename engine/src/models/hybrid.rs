//! What the architectures of delta nets and gated attention load alike: hyper-parameters, and the tensors of a layer's
//! delta net, attention and experts.

use gemel_core::ops::delta_rule_step::HeadMap;
use gemel_core::ops::gated_rms_norm::GateKind;
use gemel_core::ops::glu::GluKind;

use super::{DenseParams, ModelError, refuse};
use crate::blocks::{DeltaNet, GateUp, GatedAttention, GatedFfn, GatedQkv, Gates, Qkvz};
use crate::gguf::{Metadata, Value};
use crate::moe::{Moe, MoeParams, SharedFfn};
use crate::state::DeltaSizes;
use crate::weights::{Requests, WeightError};

/// Most sizes of a delta net: far above any model, far below what overflows.
const MAX_HEADS: usize = 1024;

/// Experts of a model, and the width of the shared one.
#[derive(Debug)]
pub(super) struct Experts {
    pub(super) moe: MoeParams,
    pub(super) d_shared: usize,
}

impl Experts {
    /// Reads the experts that an architecture has, and refuses those that it has not.
    pub(super) fn read(
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
pub(super) fn load_experts(
    requests: &mut Requests<'_>,
    p: &DenseParams,
    experts: &Experts,
    layer: usize,
) -> Result<Moe, WeightError> {
    let (d, n) = (p.info.d_model, experts.d_shared);
    let mut moe = Moe::load(requests, &experts.moe, d, layer, GluKind::Swiglu)?;
    moe.shared = Some(SharedFfn {
        ffn: load_shared_ffn(requests, d, n, layer)?,
        gate: Some(requests.row(&format!("blk.{layer}.ffn_gate_inp_shexp"), d)?),
    });
    Ok(moe)
}

/// Requests the FFN of width `n` that a layer of experts applies to every token.
pub(super) fn load_shared_ffn(
    requests: &mut Requests<'_>,
    d: usize,
    n: usize,
    layer: usize,
) -> Result<GatedFfn, WeightError> {
    let name = |what: &str| format!("blk.{layer}.{what}");
    let (gate, up) = (name("ffn_gate_shexp"), name("ffn_up_shexp"));
    let parts = [(gate.as_str(), n), (up.as_str(), n)];
    let gate_up = match requests.opt_stacked(&name("ffn_gate_up_shexp"), &parts, d)? {
        Some(both) => GateUp::Stacked(both),
        None => GateUp::Split {
            gate: requests.linear(&gate, n, d)?,
            up: requests.linear(&up, n, d)?,
        },
    };
    Ok(GatedFfn {
        gate_up,
        d_ff: n,
        down: requests.linear(&name("ffn_down_shexp"), d, n)?,
        kind: GluKind::Swiglu,
    })
}

/// Sizes of the delta nets, and the taps of their convolution.
pub(super) fn delta_sizes(
    metadata: &Metadata,
    arch: &str,
) -> Result<(DeltaSizes, usize), ModelError> {
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
pub(super) fn recurrent_layers(
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
pub(super) fn plain_metadata(
    metadata: &Metadata,
    arch: &str,
) -> Result<(Metadata, usize), ModelError> {
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
pub(super) fn sections(metadata: &Metadata, arch: &str) -> Result<[u32; 4], ModelError> {
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

/// What all delta nets of a model share.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) sizes: DeltaSizes,
    pub(super) n_taps: usize,
    pub(super) map: HeadMap,
    pub(super) gate: GateKind,
}

/// Requests the projections of a layer of attention with an output gate.
pub(super) fn load_attention(
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
        indexer: None,
        output: requests.linear(&name("attn_output"), d, p.n_heads * p.v_dim)?,
    })
}

/// Requests the tensors of a delta net.
pub(super) fn load_delta(
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
        gate: net.gate,
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

/// What the file has beyond the trunk, one phrase each; `mtp` is the prediction block, if there is one.
pub(super) fn found_beside(requests: &Requests<'_>, mtp: Option<usize>) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(layer) = mtp {
        found.push(format!("a prediction block (blk.{layer}), loaded"));
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
    found
}
