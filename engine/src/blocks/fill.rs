//! Memory that is filled instead of computed, see [`Context::assume`](crate::forward::Context::assume): the pieces that
//! write rows which are there already.

use gemel_core::error::GraphError;
use gemel_core::graph::Tensor;
use gemel_core::ops::scatter_rows::ScatterRows;

use super::StepGraph;
use super::sparse::Pool;
use crate::rope::RopeConfig;

impl StepGraph<'_> {
    /// Writes keys, f32 `[n_tokens, 1, dim]`, to the cache of an indexer as a step writes them: raw and pooled where it
    /// pools, else rotated. By the rotation, rows that repeat become different keys. `cached` counts the layers that
    /// cache keys; one without an indexer gets nothing.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub(crate) fn fill_index(
        &mut self,
        cached: usize,
        keys: &Tensor,
        norm: &Tensor,
        (rope, table): (&RopeConfig, &Tensor),
    ) -> Result<(), GraphError> {
        let cache = self.memory.kv().layer(cached);
        let Some(index) = &cache.index else {
            return Ok(());
        };
        let group = self.groups[cache.group];
        let keys = self.tensor("index rows", keys);
        let keys = self.graph.narrow(keys, 0, 0, self.shape.n_tokens)?;
        if index.pooled.is_none() {
            let keys = self.rope(&format!("blk.{cached}.index_rope"), keys, rope, table)?;
            self.keep_index_keys(cached, index, group, keys, None)?;
            return Ok(());
        }
        let pool = Pool {
            norm: self.tensor("index norm", norm),
            eps: 1e-6,
            rope_table: self.tensor("rope_table", table),
            mode: rope.mode,
            n_rot: rope.n_rot,
        };
        self.keep_index_keys(cached, index, group, keys, Some(&pool))?;
        Ok(())
    }

    /// Replaces all that a recurrent layer keeps of the sequence of the step's first token, a row `[1, n]` for each of
    /// its tensors. `index` counts the recurrent layers.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub(crate) fn fill_state(&mut self, index: usize, rows: &[Tensor]) -> Result<(), GraphError> {
        let slot = self.graph.narrow(self.seq_rows, 0, 0, 1)?;
        let layer = self.memory.states().layer(index);
        for (tensor, row) in layer.tensors().zip(rows) {
            let label = format!("blk.{index}.state");
            let (state, row) = (self.tensor(&label, tensor), self.tensor("state row", row));
            let shape = [tensor.desc.shape[0], tensor.desc.strides[0]];
            let state = self.graph.reshape(state, shape)?;
            self.graph
                .apply_multi(label, ScatterRows, &[row, slot], &[state])?;
        }
        Ok(())
    }
}
