//! The architectures, and the look-up by `general.architecture`.

pub mod deepseek32;
pub mod gemma3;
pub mod glm_dsa;
mod hybrid;
pub mod llama;
pub mod qwen2;
pub mod qwen3;
pub mod qwen35;
pub mod qwen35moe;
pub mod qwen3moe;
pub mod qwen3next;
pub mod qwen4exp;

use std::fmt;

use gemel_core::device::Device;
use gemel_core::error::{DeviceError, GraphError};
use gemel_core::graph::{Tensor, ValueId};

use crate::blocks::StepGraph;
use crate::gguf::{GgufError, Metadata};
use crate::kv_cache::KvLayer;
use crate::moe::MoeParams;
use crate::ngram::NgramTable;
use crate::rope::RopeConfig;
use crate::state::StateLayer;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// A model that cannot be built from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The engine has no such architecture.
    #[error("architecture `{arch}` is not supported; known are {known}")]
    UnknownArchitecture {
        /// What the file says.
        arch: String,
        /// What there is.
        known: String,
    },
    /// A hyper-parameter that contradicts others or is outside its range.
    #[error("`{key}` is {found}, but must be {expected}")]
    HyperParameter {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A key that is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor that is missing or does not fit.
    #[error(transparent)]
    Weight(#[from] WeightError),
}

/// Sizes that every model has.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub arch: String,
    /// Transformer blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Vocabulary.
    pub n_vocab: usize,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Widest activation of a token besides the logits, in elements: bounds the micro-batch.
    pub widest: usize,
    /// Experts of a layer and experts that a token uses, where there are any.
    pub experts: Option<(usize, usize)>,
}

/// Small tensors that a model keeps in device memory besides its weights.
#[derive(Debug, Default)]
pub struct Tables {
    /// By index of [`Model::ropes`].
    pub ropes: Vec<Tensor>,
    /// Multipliers and heads of [`Model::ngrams`].
    pub ngrams: Option<[Tensor; 2]>,
}

/// One model: hyper-parameters and requested weights, able to describe a step as a graph.
pub trait Model: fmt::Debug + Send + Sync {
    /// Sizes.
    fn info(&self) -> &ModelInfo;

    /// What each layer with keys caches.
    fn kv_layers(&self) -> Vec<KvLayer>;

    /// What each recurrent layer keeps.
    fn state_layers(&self) -> Vec<StateLayer> {
        Vec::new()
    }

    /// What the file has beyond the plain model, one phrase each, to be told when it is loaded.
    fn found(&self) -> &[String] {
        &[]
    }

    /// The distinct rotary configurations.
    fn ropes(&self) -> Vec<&RopeConfig>;

    /// The table of n-gram embeddings, if there is one.
    fn ngrams(&self) -> Option<&NgramTable> {
        None
    }

    /// Adds the nodes of a step: tokens in, logits of the output rows out; `None` if there are no output rows.
    ///
    /// # Errors
    /// Shapes that do not fit, which means a mistake in the model.
    fn build(
        &self,
        step: &mut StepGraph<'_>,
        tables: &Tables,
    ) -> Result<Option<ValueId>, GraphError>;
}

type Build = fn(&Metadata, &mut Requests<'_>) -> Result<Box<dyn Model>, ModelError>;

/// Every architecture: its GGUF name and its builder.
const ARCHITECTURES: &[(&str, Build)] = &[
    (deepseek32::ARCH, deepseek32::load),
    (gemma3::ARCH, gemma3::load),
    (glm_dsa::ARCH, glm_dsa::load),
    (llama::ARCH, llama::load),
    (qwen2::ARCH, qwen2::load),
    (qwen3::ARCH, qwen3::load),
    (qwen35::ARCH, qwen35::load),
    (qwen35moe::ARCH, qwen35moe::load),
    (qwen3next::ARCH, qwen3next::load),
    (qwen3moe::ARCH, qwen3moe::load),
    (qwen4exp::ARCH, qwen4exp::load),
];

/// Names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// Reads the hyper-parameters of a file and requests the tensors that its architecture needs.
///
/// # Errors
/// Unknown architecture; hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    let arch = metadata.str("general.architecture")?;
    match ARCHITECTURES.iter().find(|(name, _)| *name == arch) {
        Some((_, build)) => build(metadata, requests),
        None => Err(ModelError::UnknownArchitecture {
            arch: arch.to_owned(),
            known: architectures().collect::<Vec<_>>().join(", "),
        }),
    }
}

impl Tables {
    /// Builds and uploads the tables of a model.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn upload(
        model: &dyn Model,
        n_ctx: usize,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            ropes: model
                .ropes()
                .into_iter()
                .map(|rope| rope.upload(n_ctx, device))
                .collect::<Result<_, _>>()?,
            ngrams: model
                .ngrams()
                .map(|table| table.hashes.upload(device))
                .transpose()?,
        })
    }
}

/// Hyper-parameters that all dense decoder-only transformers share, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseParams {
    /// Sizes.
    pub info: ModelInfo,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Channels of a key head.
    pub k_dim: usize,
    /// Channels of a value head.
    pub v_dim: usize,
    /// Width of the FFN; 0 where a file of experts does not state it.
    pub d_ff: usize,
    /// Epsilon of the norms.
    pub eps: f32,
}

impl ModelInfo {
    /// Takes note of the experts of the layers.
    pub(crate) fn with_experts(mut self, moe: &MoeParams) -> Self {
        self.widest = self.widest.max(moe.widest(self.d_model));
        self.experts = Some((moe.n_experts, moe.route.k));
        self
    }
}

/// Refuses a hyper-parameter.
fn refuse(key: String, found: impl fmt::Display, expected: impl Into<String>) -> ModelError {
    ModelError::HyperParameter {
        key,
        found: found.to_string(),
        expected: expected.into(),
    }
}

impl DenseParams {
    /// Reads and checks `ARCH.*`.
    ///
    /// # Errors
    /// Missing keys; values that contradict each other or exceed the engine's limits.
    pub fn read(
        metadata: &Metadata,
        requests: &Requests<'_>,
        arch: &str,
    ) -> Result<Self, ModelError> {
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str, most: usize| -> Result<usize, ModelError> {
            let value = metadata.u32(&key(name))? as usize;
            if value == 0 || value > most {
                return Err(refuse(key(name), value, format!("in 1..={most}")));
            }
            Ok(value)
        };
        let n_layers = size("block_count", 1024)?;
        let d_model = size("embedding_length", 1 << 20)?;
        let n_ctx_train = size("context_length", 1 << 30)?;
        // Layers of these architectures have equal shapes; arrays are accepted when all entries agree.
        let uniform = |name: &str, values: Vec<u32>| -> Result<usize, ModelError> {
            match values.split_first() {
                Some((&first, rest)) if rest.iter().all(|&v| v == first) && first > 0 => {
                    Ok(first as usize)
                }
                _ => Err(refuse(
                    key(name),
                    format!("{values:?}"),
                    "the same in all layers and not 0",
                )),
            }
        };
        let heads_key = "attention.head_count";
        let n_heads = uniform(
            heads_key,
            metadata.per_layer_u32(&key(heads_key), n_layers)?,
        )?;
        let kv_key = "attention.head_count_kv";
        let n_kv_heads = match metadata.opt_per_layer_u32(&key(kv_key), n_layers)? {
            Some(values) => uniform(kv_key, values)?,
            None => n_heads,
        };
        if n_heads > 1024 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(refuse(
                key(kv_key),
                n_kv_heads,
                format!("a divisor of the {n_heads} query heads, of which there may be 1024"),
            ));
        }
        let dim = |name: &str| -> Result<usize, ModelError> {
            let value = metadata
                .opt_u32(&key(name))?
                .map_or(d_model / n_heads, |n| n as usize);
            if value == 0 || value > 1024 || !value.is_multiple_of(2) {
                return Err(refuse(key(name), value, "even and in 2..=1024"));
            }
            Ok(value)
        };
        let (k_dim, v_dim) = (dim("attention.key_length")?, dim("attention.value_length")?);
        let ff_key = "feed_forward_length";
        let of_experts = metadata.opt_u32(&key("expert_count"))?.unwrap_or(0) > 0;
        let d_ff = match metadata.opt_per_layer_u32(&key(ff_key), n_layers)? {
            None if of_experts => 0,
            Some(values) => uniform(ff_key, values)?,
            None => uniform(ff_key, metadata.per_layer_u32(&key(ff_key), n_layers)?)?,
        };
        if let Some(rotated) = metadata.opt_u32(&key("rope.dimension_count"))?
            && (rotated == 0 || rotated as usize > k_dim || rotated % 2 != 0)
        {
            return Err(refuse(
                key("rope.dimension_count"),
                rotated,
                format!("even and at most the head size of {k_dim}"),
            ));
        }
        let n_vocab = requests
            .shape("token_embd.weight")
            .map_or(0, |shape| shape[0]);
        if let Some(tokens) = metadata.opt_strings("tokenizer.ggml.tokens")?
            && tokens.len() != n_vocab
        {
            return Err(refuse(
                "tokenizer.ggml.tokens".to_owned(),
                format!("a list of {}", tokens.len()),
                format!("as long as token_embd has rows, {n_vocab}"),
            ));
        }
        let widest = [
            d_model,
            2 * d_ff,
            (n_heads + 2 * n_kv_heads) * k_dim.max(v_dim),
        ];
        Ok(Self {
            info: ModelInfo {
                arch: arch.to_owned(),
                n_layers,
                d_model,
                n_vocab,
                n_ctx_train,
                widest: widest.into_iter().max().unwrap_or(d_model),
                experts: None,
            },
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            d_ff,
            eps: metadata.f32(&key("attention.layer_norm_rms_epsilon"))?,
        })
    }
}

/// Embedding, final norm and head.
#[derive(Clone, Debug)]
pub struct Ends {
    /// `token_embd`, `[n_vocab, d_model]`.
    pub token_embd: WeightId,
    /// `output_norm`, `[d_model]`.
    pub output_norm: WeightId,
    /// `output`, or `token_embd` where the file ties them.
    pub output: Linear,
}

impl Ends {
    /// Requests the tensors outside the blocks.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(requests: &mut Requests<'_>, info: &ModelInfo) -> Result<Self, WeightError> {
        let (token_embd, output) = load_embedding_and_head(requests, info)?;
        Ok(Self {
            token_embd,
            output_norm: requests.vector("output_norm", info.d_model)?,
            output,
        })
    }
}

/// Requests `token_embd`, and `output` or the same tensor in its place.
fn load_embedding_and_head(
    requests: &mut Requests<'_>,
    info: &ModelInfo,
) -> Result<(WeightId, Linear), WeightError> {
    let token_embd = requests.matrix("token_embd", info.n_vocab, info.d_model)?;
    let head = if requests.has("output.weight") {
        "output"
    } else {
        "token_embd"
    };
    let output = Linear {
        label: "output".to_owned(),
        ..requests.linear(head, info.n_vocab, info.d_model)?
    };
    Ok((token_embd, output))
}
