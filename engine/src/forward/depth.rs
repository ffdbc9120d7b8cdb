//! Caches that are filled instead of computed: for measuring at depth.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::device::{Device, Recording};
use gemel_core::error::{DeviceError, GraphError};
use gemel_core::graph::{Tensor, ValueId};
use gemel_core::ops::rope::RopeMode;

use super::{Context, Head, StepError, StepToken};
use crate::blocks::{StepGraph, StepShape};
use crate::kv_cache::{CacheError, KvLayer, SeqId};
use crate::models::{Model, ModelInfo, Tables};
use crate::rope::RopeConfig;
use crate::state::StateLayer;
use crate::synthetic;

/// Most tokens of a step that fills: with more, the rows to write would be worth no plan.
const MOST_ROWS: usize = 512;

/// Seeds of keys and of values, and of an indexer's keys.
const SEEDS: [u64; 2] = [1, 2];
const INDEX_SEED: u64 = 3;

/// What is written to the cache of an indexer.
#[derive(Debug)]
struct IndexRows {
    /// f32 `[n_rows, 1, dim]`.
    keys: Tensor,
    /// Of pooled keys, f32 `[dim]`.
    norm: Tensor,
    rope: RopeConfig,
    table: Tensor,
}

/// Stands in for a model: its step writes rows that are there already instead of keys and values of tokens.
#[derive(Debug)]
struct Filler {
    info: ModelInfo,
    layers: Vec<KvLayer>,
    states: Vec<StateLayer>,
    n_rows: usize,
    /// By heads and channels, the rows of keys and those of values: f32 `[n_rows, n_kv_heads, dim]`.
    rows: BTreeMap<(usize, usize), [Tensor; 2]>,
    /// By channels of an indexer's key.
    index_rows: BTreeMap<usize, IndexRows>,
    /// Recurrent layers of the same sizes share what they are filled with.
    state_rows: Vec<(StateLayer, Vec<Tensor>)>,
}

impl Filler {
    fn new(
        model: &dyn Model,
        n_rows: usize,
        n_ctx: usize,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        let layers = model.kv_layers();
        let mut rows = BTreeMap::new();
        let mut index_rows = BTreeMap::new();
        for layer in &layers {
            for dim in [layer.k_dim, layer.v_dim] {
                let key = (layer.n_kv_heads, dim);
                if let Entry::Vacant(entry) = rows.entry(key) {
                    let desc = TensorDesc::f32([n_rows, layer.n_kv_heads, dim]);
                    let [k, v] = SEEDS
                        .map(|seed| upload(&synthetic::rows(seed, desc.n_elems()), &desc, device));
                    entry.insert([k?, v?]);
                }
            }
            if let Some(index) = layer.index
                && let Entry::Vacant(entry) = index_rows.entry(index.dim)
            {
                entry.insert(IndexRows::new(index.dim, n_rows, n_ctx, device)?);
            }
        }
        let mut state_rows: Vec<(StateLayer, Vec<Tensor>)> = Vec::new();
        for layer in model.state_layers() {
            if state_rows.iter().all(|(known, _)| *known != layer) {
                let rows = layer.sample(&synthetic::rows).into_iter();
                let rows = rows.map(|row| upload(&row, &TensorDesc::f32([1, row.len()]), device));
                state_rows.push((layer, rows.collect::<Result<_, _>>()?));
            }
        }
        Ok(Self {
            info: model.info().clone(),
            layers,
            states: model.state_layers(),
            n_rows,
            rows,
            index_rows,
            state_rows,
        })
    }
}

impl IndexRows {
    fn new(
        dim: usize,
        n_rows: usize,
        n_ctx: usize,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        let keys = TensorDesc::f32([n_rows, 1, dim]);
        let rope = RopeConfig {
            mode: RopeMode::Neox,
            n_rot: dim / 2 * 2,
            theta: 1e4,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: n_ctx,
            factors: Vec::new(),
        };
        Ok(Self {
            keys: upload(&synthetic::rows(INDEX_SEED, keys.n_elems()), &keys, device)?,
            norm: upload(&vec![1.0; dim], &TensorDesc::f32([dim]), device)?,
            table: rope.upload(n_ctx, device)?,
            rope,
        })
    }
}

fn upload(values: &[f32], desc: &TensorDesc, device: &dyn Device) -> Result<Tensor, DeviceError> {
    let buffer = device.alloc(desc.n_bytes() as u64, "rows of a filled cache")?;
    device.write(&buffer, 0, bytemuck::cast_slice(values))?;
    Ok(Tensor {
        desc: desc.clone(),
        buffers: vec![buffer],
    })
}

impl Model for Filler {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<KvLayer> {
        self.layers.clone()
    }

    fn state_layers(&self) -> Vec<StateLayer> {
        self.states.clone()
    }

    fn ropes(&self) -> Vec<&RopeConfig> {
        Vec::new()
    }

    fn build(&self, g: &mut StepGraph<'_>, _: &Tables) -> Result<Option<ValueId>, GraphError> {
        let n_tokens = g.shape.n_tokens.min(self.n_rows);
        for (index, layer) in self.layers.iter().enumerate() {
            let mut take = |dim: usize, kind: usize| {
                let tensor = &self.rows[&(layer.n_kv_heads, dim)][kind];
                let rows = g.tensor(&format!("rows.{kind}.{dim}"), tensor);
                g.graph.narrow(rows, 0, 0, n_tokens)
            };
            let (k, v) = (take(layer.k_dim, 0)?, take(layer.v_dim, 1)?);
            g.write_cache(index, index, [k, v])?;
            if let Some(layer) = layer.index {
                let rows = &self.index_rows[&layer.dim];
                let rope = (&rows.rope, &rows.table);
                g.fill_index(index, &rows.keys, &rows.norm, rope)?;
            }
        }
        for (index, layer) in self.states.iter().enumerate() {
            let rows = self.state_rows.iter().find(|(known, _)| known == layer);
            if let Some((_, rows)) = rows {
                g.fill_state(index, rows)?;
            }
        }
        Ok(None)
    }
}

/// What fills the memory of a model, with its plans.
#[derive(Debug)]
pub(super) struct Filling {
    filler: Arc<dyn Model>,
    plans: BTreeMap<StepShape, Recording>,
}

impl Filling {
    pub(super) fn drop_plans(&mut self) {
        self.plans.clear();
    }
}

impl Context {
    /// Treats `n` more tokens of a sequence as cached without computing them: for measuring at depth.
    ///
    /// Keys and values are rows of a seed with mean 0 and standard deviation 1, as behind a norm, repeated every few
    /// hundred tokens and the same in every layer; so are the keys of an indexer before they are pooled and rotated,
    /// which makes them different everywhere. A recurrent layer ends up with a state and a record of a seed, whatever
    /// the depth. The device writes all of it as it writes that of a step, in whatever type the caches have; the host
    /// sends the rows once and a few words a token.
    ///
    /// # Errors
    /// Context overflow, which changes nothing; device lost; out of memory.
    pub fn assume(&mut self, seq: SeqId, n: usize) -> Result<(), StepError> {
        let n_ctx = self.memory.config().n_ctx;
        let needed = self.memory.len(seq)? + n;
        if needed > n_ctx {
            return Err(CacheError::Overflow { needed, n_ctx }.into());
        }
        if n == 0 {
            return Ok(());
        }
        let n_rows = self.memory.config().n_ubatch.min(MOST_ROWS);
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => Filling {
                filler: Arc::new(Filler::new(&*self.model, n_rows, n_ctx, &*self.device)?),
                plans: BTreeMap::new(),
            },
        };
        let scratch = self.scratch_bytes();
        let model = std::mem::replace(&mut self.model, filling.filler.clone());
        std::mem::swap(&mut self.plans, &mut filling.plans);
        let filled = self.fill(seq, n, n_rows);
        self.model = model;
        std::mem::swap(&mut self.plans, &mut filling.plans);
        self.filling = Some(filling);
        if self.scratch_bytes() > scratch {
            self.drop_plans();
        }
        filled
    }

    fn fill(&mut self, seq: SeqId, n: usize, n_rows: usize) -> Result<(), StepError> {
        let first = self.memory.len(seq)?;
        let n_vocab = self.model.info().n_vocab;
        for start in (0..n).step_by(n_rows) {
            let tokens: Vec<StepToken> = (start..n.min(start + n_rows))
                .map(|i| StepToken {
                    seq,
                    // Spread, because what hashes its past tokens remembers them.
                    id: ((first + i).wrapping_mul(2_654_435_761) % n_vocab.max(1)) as u32,
                    output: false,
                })
                .collect();
            self.step(&tokens, Head::Argmax)?;
        }
        Ok(())
    }
}
