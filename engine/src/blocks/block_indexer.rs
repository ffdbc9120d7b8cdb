//! The projections of an indexer whose keys are pooled by block, and the nodes that make queries and keys of them.

use gemel_core::error::GraphError;
use gemel_core::graph::{Tensor, ValueId};

use super::StepGraph;
use super::sparse::{Indexer, Pool};
use crate::rope::RopeConfig;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// The indexer of a layer: queries by head, one key.
#[derive(Clone, Debug)]
pub struct BlockIndexer {
    n_heads: usize,
    dim: usize,
    projections: Projections,
    q_norm: WeightId,
    k_norm: WeightId,
}

#[derive(Clone, Debug)]
enum Projections {
    Split {
        q: Linear,
        k: Linear,
    },
    /// The rows of queries, then those of the key.
    Stacked(Linear),
}

impl BlockIndexer {
    /// Requests `LABEL.q_proj`, `LABEL.k_proj`, `LABEL.q_norm` and `LABEL.k_norm`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(
        requests: &mut Requests<'_>,
        label: &str,
        [n_heads, dim]: [usize; 2],
        d_model: usize,
    ) -> Result<Self, WeightError> {
        let name = |what: &str| format!("{label}.{what}");
        let (q, k) = (name("q_proj"), name("k_proj"));
        let parts = [(q.as_str(), n_heads * dim), (k.as_str(), dim)];
        Ok(Self {
            n_heads,
            dim,
            projections: match requests.opt_stacked(&name("qk_proj"), &parts, d_model)? {
                Some(both) => Projections::Stacked(both),
                None => Projections::Split {
                    q: requests.linear(&q, n_heads * dim, d_model)?,
                    k: requests.linear(&k, dim, d_model)?,
                },
            },
            q_norm: requests.vector(&name("q_norm"), dim)?,
            k_norm: requests.vector(&name("k_norm"), dim)?,
        })
    }
}

impl StepGraph<'_> {
    /// Queries, normed and rotated, and keys as they are, of rows `x`: what [`attend_sparse`](Self::attend_sparse)
    /// selects by.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub(super) fn block_indexer(
        &mut self,
        layer: usize,
        indexer: &BlockIndexer,
        (rope, rope_table): (&RopeConfig, &Tensor),
        eps: f32,
        x: ValueId,
    ) -> Result<Indexer, GraphError> {
        let label = |what: &str| format!("blk.{layer}.indexer.{what}");
        let (n, n_heads, dim) = (self.shape.n_tokens, indexer.n_heads, indexer.dim);
        let [q, k] = match &indexer.projections {
            Projections::Split { q, k } => [self.linear(q, x)?, self.linear(k, x)?],
            Projections::Stacked(both) => {
                let both = self.linear(both, x)?;
                [
                    self.graph.narrow(both, 1, 0, n_heads * dim)?,
                    self.graph.narrow(both, 1, n_heads * dim, dim)?,
                ]
            }
        };
        let q = self.graph.reshape(q, [n, n_heads, dim])?;
        let q = self.rms_norm(&label("q_norm"), q, indexer.q_norm, eps)?;
        Ok(Indexer {
            q: self.rope(&label("q_rope"), q, rope, rope_table)?,
            key: self.graph.reshape(k, [n, 1, dim])?,
            weights: None,
            scale: 1.0 / (dim as f32).sqrt(),
            pool: Some(Pool {
                norm: self.weight(&label("k_norm"), indexer.k_norm),
                eps,
                rope_table: self.tensor("rope_table", rope_table),
                mode: rope.mode,
                n_rot: rope.n_rot,
            }),
        })
    }
}
