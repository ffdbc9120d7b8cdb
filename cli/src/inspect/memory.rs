//! What a model remembers of a sequence, and what it costs.

use gemel_core::{DType, PAGE};
use gemel_engine::kv_cache::{CacheConfig, IndexLayer, KvCache, KvLayer};
use gemel_engine::models::Model;
use gemel_engine::state::{N_RECORDED, StateCache};

const MIB: f64 = 1_048_576.0;

/// A cache of one sequence.
fn config(n_ctx: usize, k_type: DType, v_type: DType) -> CacheConfig {
    CacheConfig {
        n_ctx,
        n_seqs: 1,
        n_ubatch: 512,
        k_type,
        v_type,
    }
}

/// What its layers see, and bytes by token and by sequence, line by line.
pub(super) fn lines(model: &dyn Model) -> Vec<String> {
    let (layers, states) = (model.kv_layers(), model.state_layers());
    let n_ctx = model.info().n_ctx_train;
    let mut lines = Vec::new();
    let windowed: Vec<_> = layers.iter().filter(|layer| layer.window > 0).collect();
    if let Some(layer) = windowed.first() {
        lines.push(format!(
            "attention: {} layers see everything, {} a window of {} tokens",
            layers.len() - windowed.len(),
            windowed.len(),
            layer.window
        ));
    }
    lines.extend(selecting(&layers));
    let state = StateCache::n_bytes(&states, &config(PAGE, DType::F16, DType::F16));
    if !states.is_empty() {
        lines.push(format!(
            "recurrent: {} layers keep {:.1} MiB of a sequence of any length; without a checkpoint it goes back by up \
             to {N_RECORDED} tokens",
            states.len(),
            state as f64 / MIB
        ));
    }
    for (k_type, v_type) in [(DType::F16, DType::F16), (DType::Q8_0, DType::Q8_0)] {
        let bytes = |n_ctx| KvCache::n_bytes(&layers, &config(n_ctx, k_type, v_type));
        // Once windows are full, only the layers that see everything take more.
        let long = 1 << 24;
        let by_token = (bytes(long) - bytes(long / 2)) / (long as u64 / 2);
        let whole = |n_ctx| (bytes(n_ctx) + state) as f64 / MIB;
        lines.push(format!(
            "cache with K {k_type}, V {v_type}: {by_token} bytes a token; a sequence takes {:.1} MiB with 4096 tokens, \
             {:.1} MiB with {n_ctx}",
            whole(4096),
            whole(n_ctx),
        ));
    }
    lines
}

/// The layers that attend to what their indexer selects, those with the same sizes together.
fn selecting(layers: &[KvLayer]) -> Vec<String> {
    let mut kinds: Vec<(IndexLayer, usize)> = Vec::new();
    for index in layers.iter().filter_map(|layer| layer.index) {
        match kinds.iter_mut().find(|(kind, _)| *kind == index) {
            Some((_, n)) => *n += 1,
            None => kinds.push((index, 1)),
        }
    }
    let mut lines = Vec::new();
    for (index, n) in kinds {
        let n_layers = layers.len();
        let blocks = if index.ratio > 1 {
            format!(
                ", {} blocks of {}, besides those of an incomplete block",
                index.n_selected(),
                index.ratio
            )
        } else {
            String::new()
        };
        lines.push(format!(
            "sparse attention: {n} of {n_layers} attention layers select at most {} tokens{blocks}; all of them up to \
             {} tokens",
            index.budget,
            index.dense_len()
        ));
        let pooled = if index.ratio > 1 {
            format!(", and one for each block of {}", index.ratio)
        } else {
            String::new()
        };
        lines.push(format!(
            "indexer: keys of {} channels in {} or the type of K, whichever has more bits, one for each token{pooled}",
            index.dim, index.dtype
        ));
    }
    lines
}
