//! Latent attention: keys and values of all heads are one row a token, and what differs by head multiplies queries and
//! results instead. Beside it the lightning indexer, which selects the tokens that are attended.
//!
//! ```text
//! h -> q_a, norm -> q_b -> queries by head -> [k_b · unrotated part | rotated part]
//! h -> kv_a -> [norm of the latent | rotated part] -> the cache, keys and values in one
//! attention -> a latent by head -> v_b -> output
//! ```

use gemel_core::error::GraphError;
use gemel_core::graph::{Tensor, ValueId};
use gemel_core::ops::concat_channels::ConcatChannels;
use gemel_core::ops::layer_norm::LayerNorm;
use gemel_core::ops::matmul_by_id::MatmulById;

use super::sparse::Indexer;
use super::{AttentionShape, StepGraph};
use crate::rope::RopeConfig;
use crate::weights::{ExpertStack, Linear, WeightId};

/// Added to the variance of an indexer's keys.
const INDEX_EPS: f32 = 1e-6;

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSizes {
    /// Query heads.
    pub n_heads: usize,
    /// Channels between the two projections of queries.
    pub q_rank: usize,
    /// Channels of the latent: what is a value.
    pub kv_rank: usize,
    /// Unrotated channels of a query head.
    pub nope_dim: usize,
    /// Rotated channels of a query head, and of the row that all heads share.
    pub rope_dim: usize,
    /// Channels of a head's result.
    pub v_dim: usize,
}

impl LatentSizes {
    /// Channels of a cached row, which are those of a query that meets it.
    pub fn row_dim(&self) -> usize {
        self.kv_rank + self.rope_dim
    }

    /// Channels of a query head as it is projected.
    pub fn q_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// The attention that the cache sees: one key head of which the first channels are the value.
    pub fn attention(&self, scale: f32) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_heads,
            n_kv_heads: 1,
            k_dim: self.row_dim(),
            v_dim: self.kv_rank,
            scale,
            softcap: 0.0,
            window: 0,
        }
    }
}

/// The first projections of queries and of the cached row.
#[derive(Clone, Debug)]
pub enum LatentInput {
    /// Two matrices.
    Split {
        /// Queries, `[q_rank, d_model]`.
        q: Linear,
        /// The row, `[kv_rank + rope_dim, d_model]`.
        kv: Linear,
    },
    /// One matrix with the rows of both.
    Stacked(Linear),
}

/// Weights of latent attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    /// Sizes.
    pub sizes: LatentSizes,
    /// First projections.
    pub input: LatentInput,
    /// Norms of queries between their projections, and of the latent.
    pub norms: [WeightId; 2],
    /// Second projection of queries, `[n_heads * (nope_dim + rope_dim), q_rank]`.
    pub q_b: Linear,
    /// From unrotated queries to the latent, `[n_heads, kv_rank, nope_dim]`.
    pub k_b: ExpertStack,
    /// From the latent to results, `[n_heads, v_dim, kv_rank]`.
    pub v_b: ExpertStack,
    /// `[d_model, n_heads * v_dim]`.
    pub output: Linear,
}

/// Weights of a lightning indexer.
#[derive(Clone, Debug)]
pub struct LightningIndexer {
    /// Heads.
    pub n_heads: usize,
    /// Channels of a head, of which as many are rotated as in the attention: the first.
    pub dim: usize,
    /// Queries from those of the attention between their projections, `[n_heads * dim, q_rank]`.
    pub q_b: Linear,
    /// Keys, `[dim, d_model]`.
    pub k: Linear,
    /// Weight and bias of the layer norm of keys, `[dim]`.
    pub k_norm: [WeightId; 2],
    /// Weights of the heads, `[n_heads, d_model]`.
    pub weights: Linear,
}

/// Which tokens a layer attends to.
#[derive(Clone, Copy, Debug)]
pub enum Selector<'a> {
    /// Those that its own indexer selects, whose queries and keys are rotated so.
    Own(&'a LightningIndexer, &'a RopeConfig),
    /// Those that an earlier layer selected, by its place among the layers that cache keys.
    Earlier(usize),
}

impl StepGraph<'_> {
    /// Latent attention of a layer, its place among those that cache keys before its number. `[n_tokens, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn latent_attention(
        &mut self,
        (cached, layer): (usize, usize),
        attention: &LatentAttention,
        (shape, selector): (&AttentionShape, Selector<'_>),
        (rope, table): (&RopeConfig, &Tensor),
        eps: f32,
        h: ValueId,
    ) -> Result<ValueId, GraphError> {
        let name = |what: &str| format!("blk.{layer}.{what}");
        let n = self.shape.n_tokens;
        let sizes = attention.sizes;
        let (q_a, kv_a) = match &attention.input {
            LatentInput::Split { q, kv } => (self.linear(q, h)?, self.linear(kv, h)?),
            LatentInput::Stacked(both) => {
                let both = self.linear(both, h)?;
                let q = self.graph.narrow(both, 1, 0, sizes.q_rank)?;
                let kv = self.graph.narrow(both, 1, sizes.q_rank, sizes.row_dim())?;
                (q, kv)
            }
        };
        let [q_norm, kv_norm] = attention.norms;
        let q_a = self.rms_norm(&name("attn_q_a_norm"), q_a, q_norm, eps)?; // [n_tokens, q_rank]

        let q = self.linear(&attention.q_b, q_a)?;
        let q = self.graph.reshape(q, [n, sizes.n_heads, sizes.q_dim()])?;
        let nope = self.graph.narrow(q, 2, 0, sizes.nope_dim)?;
        let pe = self.graph.narrow(q, 2, sizes.nope_dim, sizes.rope_dim)?;
        let pe = self.rope(&name("q_rope"), pe, rope, table)?;
        let nope = self.by_head(&attention.k_b, nope)?; // [n_tokens, n_heads, kv_rank]
        let q = (self.graph).apply(name("q"), ConcatChannels, &[nope, pe])?;

        let kv = self.graph.reshape(kv_a, [n, 1, sizes.row_dim()])?;
        let latent = self.graph.narrow(kv, 2, 0, sizes.kv_rank)?;
        let latent = self.rms_norm(&name("attn_kv_a_norm"), latent, kv_norm, eps)?;
        let pe = self.graph.narrow(kv, 2, sizes.kv_rank, sizes.rope_dim)?;
        let pe = self.rope(&name("k_rope"), pe, rope, table)?;
        let row = (self.graph).apply(name("kv"), ConcatChannels, &[latent, pe])?; // [n_tokens, 1, row_dim]

        let qkv = [q, row, row];
        let latents = match selector {
            Selector::Own(indexer, rotation) => {
                let indexer = self.lightning(layer, indexer, (rotation, table), [q_a, h])?;
                self.attend_sparse(cached, layer, shape, qkv, &indexer)?
            }
            Selector::Earlier(from) => self.attend_as_selected(cached, layer, from, shape, qkv)?,
        };
        let latents = (self.graph).reshape(latents, [n, sizes.n_heads, sizes.kv_rank])?;
        let heads = self.by_head(&attention.v_b, latents)?; // [n_tokens, n_heads, v_dim]
        let heads = (self.graph).reshape(heads, [n, sizes.n_heads * sizes.v_dim])?;
        self.linear(&attention.output, heads)
    }

    /// What a lightning indexer brings to a step, from queries between their projections and the layer's input.
    ///
    /// A choice hangs on its products, so activations enter them exactly, whatever the precision of others. Some engines
    /// multiply queries and keys by a Hadamard matrix, which leaves their products as they are and is for keys of few
    /// bits; these have 16 at least.
    fn lightning(
        &mut self,
        layer: usize,
        indexer: &LightningIndexer,
        (rope, table): (&RopeConfig, &Tensor),
        [q_a, h]: [ValueId; 2],
    ) -> Result<Indexer, GraphError> {
        let name = |what: &str| format!("blk.{layer}.indexer.{what}");
        let n = self.shape.n_tokens;
        let q = self.exact_linear(&indexer.q_b, q_a)?;
        let q = self.graph.reshape(q, [n, indexer.n_heads, indexer.dim])?;
        let q = self.rope(&name("q_rope"), q, rope, table)?;
        let k = self.exact_linear(&indexer.k, h)?;
        let [w, b] = indexer.k_norm;
        let (w, b) = (
            self.weight(&name("k_norm"), w),
            self.weight(&name("k_norm.bias"), b),
        );
        let norm = LayerNorm { eps: INDEX_EPS };
        let k = self.graph.apply(name("k_norm"), norm, &[k, w, b])?;
        let k = self.graph.reshape(k, [n, 1, indexer.dim])?;
        let k = self.rope(&name("k_rope"), k, rope, table)?;
        let weights = self.exact_linear(&indexer.weights, h)?; // [n_tokens, n_heads]
        Ok(Indexer {
            q,
            key: k, // [n_tokens, 1, dim]
            weights: Some(weights),
            scale: 1.0 / ((indexer.n_heads * indexer.dim) as f32).sqrt(),
            pool: None,
        })
    }

    /// Products of a matrix for each head. `[n_tokens, n_heads, d_out]`
    fn by_head(&mut self, stack: &ExpertStack, x: ValueId) -> Result<ValueId, GraphError> {
        let w = self.weight(&stack.label, stack.weight);
        let [n_heads, d_out] = [self.graph.desc(w).shape[0], self.graph.desc(w).shape[1]];
        let mut inputs = vec![x, w];
        if let Some(scale) = stack.scale {
            inputs.push(self.weight(&format!("{}.scale", stack.label), scale));
        }
        if let Some(bias) = stack.bias {
            let value = self.weight(&format!("{}.bias", stack.label), bias);
            inputs.push(self.graph.reshape(value, [n_heads, d_out])?);
        }
        let op = MatmulById {
            scaled: stack.scale.is_some(),
            biased: stack.bias.is_some(),
            batched: true,
            ..MatmulById::PLAIN
        };
        self.graph.apply(&*stack.label, op, &inputs)
    }
}
