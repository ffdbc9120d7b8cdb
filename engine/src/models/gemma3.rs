//! `gemma3`: GeGLU, norms before and after each branch, scaled embedding, sliding-window layers between global ones.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::rope::RopeMode;
use gemel_core::ops::softcap::Softcap;

use super::llama::{load_ffn, load_qkv};
use super::{DenseParams, Ends, Model, ModelError, ModelInfo, Tables};
use crate::blocks::{AttentionShape, GatedFfn, Qkv, StepGraph};
use crate::gguf::{Metadata, Value};
use crate::kv_cache::KvLayer;
use crate::rope::RopeConfig;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// `general.architecture`.
pub const ARCH: &str = "gemma3";

/// Layers of the 27B model, whose query scale departs from the head size.
const N_LAYERS_27B: usize = 62;

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    Ok(Box::new(Gemma3::load(metadata, requests)?))
}

#[derive(Debug)]
struct Gemma3 {
    params: DenseParams,
    attention: AttentionShape,
    /// Of global layers, then of sliding-window layers.
    ropes: [RopeConfig; 2],
    /// Soft cap of the logits, 0 for none.
    logit_softcap: f32,
    ends: Ends,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// 0 for a global layer.
    window: usize,
    attn_norm: WeightId,
    qkv: Qkv,
    attn_q_norm: WeightId,
    attn_k_norm: WeightId,
    attn_output: Linear,
    post_attention_norm: WeightId,
    ffn_norm: WeightId,
    ffn: GatedFfn,
    post_ffw_norm: WeightId,
}

/// Which layers have a sliding window: an array of switches, or a period whose last layer is global.
fn window_pattern(metadata: &Metadata, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let key = format!("{ARCH}.attention.sliding_window_pattern");
    let period = match metadata.get(&key) {
        None => 6,
        Some(Value::Array(_)) => {
            let pattern = metadata.bools(&key)?;
            if pattern.len() != n_layers {
                return Err(super::refuse(
                    key,
                    format!("a list of {}", pattern.len()),
                    format!("one entry for each of the {n_layers} layers"),
                ));
            }
            return Ok(pattern.to_vec());
        }
        Some(_) => metadata.u32(&key)? as usize,
    };
    if period == 0 {
        return Err(super::refuse(key, 0, "1 or more"));
    }
    Ok((0..n_layers)
        .map(|layer| layer % period < period - 1)
        .collect())
}

impl Gemma3 {
    fn load(metadata: &Metadata, requests: &mut Requests<'_>) -> Result<Self, ModelError> {
        let params = DenseParams::read(metadata, requests, ARCH)?;
        let info = &params.info;
        let window = metadata
            .opt_u32(&format!("{ARCH}.attention.sliding_window"))?
            .unwrap_or(0) as usize;
        let pattern = window_pattern(metadata, info.n_layers)?;
        let global = RopeConfig::from_metadata(
            metadata,
            ARCH,
            RopeMode::Neox,
            params.k_dim,
            info.n_ctx_train,
        )?;
        let theta_swa = metadata
            .opt_f32(&format!("{ARCH}.rope.freq_base_swa"))?
            .unwrap_or(10_000.0);
        let n_rot_swa = metadata
            .opt_u32(&format!("{ARCH}.rope.dimension_count_swa"))?
            .map_or(global.n_rot, |n| n as usize);
        if n_rot_swa == 0 || n_rot_swa > params.k_dim || n_rot_swa % 2 != 0 {
            return Err(super::refuse(
                format!("{ARCH}.rope.dimension_count_swa"),
                n_rot_swa,
                format!("even and at most the head size of {}", params.k_dim),
            ));
        }
        let local = RopeConfig {
            theta: f64::from(theta_swa),
            n_rot: n_rot_swa,
            freq_scale: 1.0,
            ext_factor: 0.0,
            ..global.clone()
        };
        let scale_dim = if info.n_layers == N_LAYERS_27B {
            info.d_model / params.n_heads
        } else {
            params.k_dim
        };
        let ends = Ends::load(requests, info)?;
        let layers = pattern
            .iter()
            .enumerate()
            .map(|(layer, &local)| {
                Layer::load(requests, &params, layer, if local { window } else { 0 })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            attention: AttentionShape {
                n_heads: params.n_heads,
                n_kv_heads: params.n_kv_heads,
                k_dim: params.k_dim,
                v_dim: params.v_dim,
                scale: 1.0 / (scale_dim as f32).sqrt(),
                softcap: 0.0,
                window: 0,
            },
            ropes: [global, local],
            logit_softcap: metadata
                .opt_f32(&format!("{ARCH}.final_logit_softcapping"))?
                .unwrap_or(0.0),
            params,
            ends,
            layers,
        })
    }
}

impl Layer {
    fn load(
        requests: &mut Requests<'_>,
        p: &DenseParams,
        layer: usize,
        window: usize,
    ) -> Result<Self, WeightError> {
        let d = p.info.d_model;
        let name = |what: &str| format!("blk.{layer}.{what}");
        Ok(Self {
            window,
            attn_norm: requests.vector(&name("attn_norm"), d)?,
            qkv: load_qkv(requests, p, layer)?,
            attn_q_norm: requests.vector(&name("attn_q_norm"), p.k_dim)?,
            attn_k_norm: requests.vector(&name("attn_k_norm"), p.k_dim)?,
            attn_output: requests.linear(&name("attn_output"), d, p.n_heads * p.v_dim)?,
            post_attention_norm: requests.vector(&name("post_attention_norm"), d)?,
            ffn_norm: requests.vector(&name("ffn_norm"), d)?,
            ffn: load_ffn(requests, p, layer, GluKind::Geglu)?,
            post_ffw_norm: requests.vector(&name("post_ffw_norm"), d)?,
        })
    }
}

impl Model for Gemma3 {
    fn info(&self) -> &ModelInfo {
        &self.params.info
    }

    fn kv_layers(&self) -> Vec<KvLayer> {
        self.layers
            .iter()
            .map(|layer| KvLayer {
                n_kv_heads: self.params.n_kv_heads,
                k_dim: self.params.k_dim,
                v_dim: self.params.v_dim,
                shared_kv: false,
                window: layer.window,
                index: None,
            })
            .collect()
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        self.ropes.iter().collect()
    }

    fn build(&self, g: &mut StepGraph<'_>, tables: &Tables) -> Result<Option<ValueId>, GraphError> {
        let eps = self.params.eps;
        let embed_scale = (self.params.info.d_model as f32).sqrt();
        let mut x = g.embed(self.ends.token_embd, embed_scale)?; // [n_tokens, d_model]
        for (index, layer) in self.layers.iter().enumerate() {
            let name = |what: &str| format!("blk.{index}.{what}");
            let attention = AttentionShape {
                window: layer.window,
                ..self.attention.clone()
            };
            let kind = usize::from(layer.window > 0);
            let (rope, table) = (&self.ropes[kind], &tables.ropes[kind]);
            let h = g.rms_norm(&name("attn_norm"), x, layer.attn_norm, eps)?;
            let [q, k, v] = g.qkv(&layer.qkv, &attention, h)?; // [n_tokens, heads, dim]
            let q = g.rms_norm(&name("attn_q_norm"), q, layer.attn_q_norm, eps)?;
            let k = g.rms_norm(&name("attn_k_norm"), k, layer.attn_k_norm, eps)?;
            let [q, k] = g.rope_qk(index, [q, k], rope, table)?;
            let a = g.attend(index, &attention, [q, k, v])?; // [n_tokens, n_heads * v_dim]
            let a = g.linear(&layer.attn_output, a)?;
            let a = g.rms_norm(
                &name("post_attention_norm"),
                a,
                layer.post_attention_norm,
                eps,
            )?;
            x = g.add(&name("attn_residual"), x, a)?;
            let h = g.rms_norm(&name("ffn_norm"), x, layer.ffn_norm, eps)?;
            let f = g.gated_ffn(&name("ffn"), &layer.ffn, h)?;
            let f = g.rms_norm(&name("post_ffw_norm"), f, layer.post_ffw_norm, eps)?;
            x = g.add(&name("ffn_residual"), x, f)?;
        }
        let Some(x) = g.output_rows(x)? else {
            return Ok(None);
        };
        let h = g.rms_norm("output_norm", x, self.ends.output_norm, eps)?;
        let logits = g.linear(&self.ends.output, h)?; // [n_outputs, n_vocab]
        if self.logit_softcap > 0.0 {
            let cap = self.logit_softcap;
            return g
                .graph
                .apply("logit_softcap", Softcap { cap }, &[logits])
                .map(Some);
        }
        Ok(Some(logits))
    }
}
