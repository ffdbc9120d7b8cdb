//! Caches that are filled instead of computed: for measuring at depth.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::device::Device;
use gemel_core::error::{DeviceError, GraphError};
use gemel_core::graph::{Tensor, ValueId};

use super::{Context, Head, StepError, StepToken};
use crate::blocks::StepGraph;
use crate::kv_cache::{CacheError, KvLayer, SeqId};
use crate::models::{Model, ModelInfo, Tables};
use crate::rope::RopeConfig;
use crate::synthetic;

/// Most tokens of a step that fills: with more, the rows to write would be worth no plan.
const MOST_ROWS: usize = 512;

/// Seeds of keys and of values.
const SEEDS: [u64; 2] = [1, 2];

/// Stands in for a model: its step writes rows that are there already instead of keys and values of tokens.
#[derive(Debug)]
struct Filler {
    info: ModelInfo,
    layers: Vec<KvLayer>,
    n_rows: usize,
    /// By heads and channels, the rows of keys and those of values: f32 `[n_rows, n_kv_heads, dim]`.
    rows: BTreeMap<(usize, usize), [Tensor; 2]>,
}

impl Filler {
    fn new(model: &dyn Model, n_rows: usize, device: &dyn Device) -> Result<Self, DeviceError> {
        let layers = model.kv_layers();
        let mut rows = BTreeMap::new();
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
        }
        Ok(Self {
            info: model.info().clone(),
            layers,
            n_rows,
            rows,
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
        }
        Ok(None)
    }
}

impl Context {
    /// Treats `n` more tokens of a sequence as cached without computing them: for measuring at depth.
    ///
    /// Keys and values are rows of a seed with mean 0 and standard deviation 1, as behind a norm, repeated every few
    /// hundred tokens and the same in every layer. The device writes them as it writes those of a step, in whatever
    /// type the caches have; the host sends them once and a few words a token.
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
        let filler = Arc::new(Filler::new(&*self.model, n_rows, &*self.device)?);
        let model = std::mem::replace(&mut self.model, filler);
        let plans = std::mem::take(&mut self.plans);
        let filled = self.fill(seq, n, n_rows);
        (self.model, self.plans) = (model, plans);
        filled
    }

    fn fill(&mut self, seq: SeqId, n: usize, n_rows: usize) -> Result<(), StepError> {
        let token = StepToken {
            seq,
            id: 0,
            output: false,
        };
        let tokens = vec![token; n_rows];
        for start in (0..n).step_by(n_rows) {
            self.step(&tokens[..n_rows.min(n - start)], Head::Argmax)?;
        }
        Ok(())
    }
}
