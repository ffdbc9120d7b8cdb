//! Attention to selected blocks: an indexer scores the blocks of the past, and only the best are attended.
//!
//! Its keys are cached, pooled by block as blocks become complete, and scored; the best blocks of each token are
//! selected and attended together with the block that the token leaves incomplete. All of it stays on the device, in
//! the pages of the attention's own cache. Where the whole sequence fits the budget the selection would be everything:
//! the plan of such a bucket attends densely, but still keeps the indexer's keys.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::{
    index_pool::IndexPool, index_score::IndexScore, kv_write::KvWrite, rope::RopeMode,
    sparse_attention::SparseAttention, topk_blocks::TopkBlocks,
};

use super::{AttentionShape, GroupInputs, StepGraph};
use crate::kv_cache::IndexCache;

/// Most bytes of scores at a time: tokens of a prompt are scored in as many turns as that takes, so that the scores
/// of a step do not grow with tokens times blocks.
const SCORE_BYTES: usize = 64 << 20;

/// What a step brings to the indexer of a layer.
#[derive(Clone, Debug)]
pub struct Indexer {
    /// Queries, normed and rotated. `[n_tokens, n_index_heads, dim]`
    pub q: ValueId,
    /// Keys as they are cached: raw if they are pooled, else normed and rotated. `[n_tokens, 1, dim]`
    pub key: ValueId,
    /// Weights of the heads, if they differ by token. `[n_tokens, n_index_heads]`
    pub weights: Option<ValueId>,
    /// Factor of the scores.
    pub scale: f32,
    /// How keys of a block become one, for layers that pool.
    pub pool: Option<Pool>,
}

/// Mean, norm, rotation at the block's first token.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Weight of the norm, f32 `[dim]`.
    pub norm: ValueId,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Rope table, see [`gemel_core::ops::rope`].
    pub rope_table: ValueId,
    /// Which channels form a pair.
    pub mode: RopeMode,
    /// Rotated channels.
    pub n_rot: usize,
}

impl StepGraph<'_> {
    /// Writes `k`, `v` and the indexer's keys to the cache of a layer, then attends to what the indexer selects.
    /// `[n_tokens, n_heads * v_dim]`
    ///
    /// `cached` counts the layers that cache keys. One whose cache has no indexer attends to everything.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn attend_sparse(
        &mut self,
        cached: usize,
        layer: usize,
        at: &AttentionShape,
        qkv: [ValueId; 3],
        indexer: &Indexer,
    ) -> Result<ValueId, GraphError> {
        self.select([cached, layer], indexer, SCORE_BYTES)?;
        self.attend_selected([cached, layer], cached, at, qkv)
    }

    /// The same with what the indexer of an earlier layer selected, `selector` among those that cache keys: the last
    /// layer before this one that has an indexer.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn attend_as_selected(
        &mut self,
        cached: usize,
        layer: usize,
        selector: usize,
        at: &AttentionShape,
        qkv: [ValueId; 3],
    ) -> Result<ValueId, GraphError> {
        self.attend_selected([cached, layer], selector, at, qkv)
    }

    /// Writes the keys of a step, `[n_tokens, 1, dim]`, to an indexer's cache, pools the blocks that they complete, and
    /// returns what is scored.
    pub(super) fn keep_index_keys(
        &mut self,
        layer: usize,
        index: &IndexCache,
        group: GroupInputs,
        key: ValueId,
        pool: Option<&Pool>,
    ) -> Result<ValueId, GraphError> {
        let label = |what: &str| format!("blk.{layer}.{what}");
        let raw = self.graph.bind(label("index_raw"), &index.raw);
        let key_write = label("index_key_write");
        self.graph
            .apply_multi(key_write, KvWrite, &[key, group.slots], &[raw])?;
        let (Some(pool), Some(pooled)) = (pool, &index.pooled) else {
            return Ok(raw);
        };
        let keys = self.graph.bind(label("index_pooled"), pooled);
        let op = IndexPool {
            ratio: index.layer.ratio,
            eps: pool.eps,
            mode: pool.mode,
            n_rot: pool.n_rot,
        };
        let inputs = [
            raw,
            pool.norm,
            pool.rope_table,
            group.table,
            self.seq_rows,
            self.positions,
        ];
        self.graph
            .apply_multi(label("index_pool"), op, &inputs, &[keys])?;
        Ok(keys)
    }

    /// Writes the indexer's keys to the cache of a layer and selects the blocks of each token, unless the whole bucket
    /// fits the budget.
    fn select(
        &mut self,
        [cached, layer]: [usize; 2],
        indexer: &Indexer,
        score_bytes: usize,
    ) -> Result<(), GraphError> {
        let cache = self.memory.kv().layer(cached);
        let Some(index) = &cache.index else {
            return Ok(());
        };
        let group = self.groups[cache.group];
        let label = |what: &str| format!("blk.{layer}.{what}");
        let keys = self.keep_index_keys(layer, index, group, indexer.key, indexer.pool.as_ref())?;
        if self.shape.max_len <= index.layer.dense_len() {
            return Ok(());
        }
        let score = IndexScore {
            scale: indexer.scale,
            ratio: index.layer.ratio,
            max_len: self.shape.max_len,
        };
        let topk = TopkBlocks {
            k: index.layer.n_selected(),
            ratio: index.layer.ratio,
        };
        let n_tokens = self.shape.n_tokens;
        let selection = self.graph.bind(label("selection"), &index.selection);
        let selection = self.graph.narrow(selection, 0, 0, n_tokens)?;
        let turn = (score_bytes / (4 * score.n_blocks())).clamp(1, n_tokens.max(1));
        for first in (0..n_tokens).step_by(turn) {
            let n = turn.min(n_tokens - first);
            let mut rows = |value| self.graph.narrow(value, 0, first, n);
            let [q, seq_rows, positions, selected] = [
                rows(indexer.q)?,
                rows(self.seq_rows)?,
                rows(self.positions)?,
                rows(selection)?,
            ];
            let mut inputs = vec![q, keys, group.table, seq_rows, positions];
            if let Some(weights) = indexer.weights {
                inputs.push(rows(weights)?);
            }
            let scores = self
                .graph
                .apply(label("index_score"), score.clone(), &inputs)?;
            self.graph.apply_multi(
                label("topk_blocks"),
                topk.clone(),
                &[scores, positions],
                &[selected],
            )?;
        }
        Ok(())
    }

    /// Attends to what stands in the selection of layer `selector`, or to everything where nothing is selected.
    fn attend_selected(
        &mut self,
        [cached, layer]: [usize; 2],
        selector: usize,
        at: &AttentionShape,
        [q, k, v]: [ValueId; 3],
    ) -> Result<ValueId, GraphError> {
        let kv = self.memory.kv();
        let index = match &kv.layer(selector).index {
            Some(index) if self.shape.max_len > index.layer.dense_len() => index,
            _ => return self.attend_in(cached, layer, at, [q, k, v]),
        };
        let n_tokens = self.shape.n_tokens;
        let group = self.groups[kv.layer(cached).group];
        let label = |what: &str| format!("blk.{layer}.{what}");
        let selection = self.graph.bind(label("selection"), &index.selection);
        let selection = self.graph.narrow(selection, 0, 0, n_tokens)?;
        let (k_cache, v_cache) = self.write_cache(cached, layer, [k, v])?;
        let attention = SparseAttention {
            scale: at.scale,
            softcap: at.softcap,
            ratio: index.layer.ratio,
            tail: index.layer.ratio > 1,
            shared_kv: v_cache.is_none().then_some(at.v_dim),
        };
        let mut inputs = vec![q, k_cache];
        inputs.extend(v_cache);
        inputs.extend([group.table, self.seq_rows, self.positions, selection]);
        let out = self
            .graph
            .apply(label("sparse_attention"), attention, &inputs)?;
        self.graph.reshape(out, [n_tokens, at.n_heads * at.v_dim])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gemel_core::device::{Device, Upload, submit};
    use gemel_core::graph::Tensor;
    use gemel_core::ops::rope::FINE;
    use gemel_core::plan::{Arena, compile};
    use gemel_core::reference::ReferenceDevice;
    use gemel_core::{DType, TensorDesc};

    use super::*;
    use crate::blocks::{Head, Precision, StepShape, input};
    use crate::kv_cache::{CacheConfig, IndexLayer, KvLayer, SeqId};
    use crate::memory::SequenceMemory;
    use crate::weights::Weights;

    const DIM: usize = 32;
    const N_HEADS: usize = 4;
    const SHAPE: AttentionShape = AttentionShape {
        n_heads: N_HEADS,
        n_kv_heads: 2,
        k_dim: DIM,
        v_dim: DIM,
        scale: 0.2,
        softcap: 0.0,
        window: 0,
    };

    /// One layer on the reference, whose activations follow from position and channel.
    struct Bench {
        device: ReferenceDevice,
        memory: SequenceMemory,
        score_bytes: usize,
    }

    /// A number in -1 .. 1 that looks random.
    fn noise(kind: usize, position: i32, i: usize) -> f32 {
        let mut z = (kind * 7919 + position as usize) as u64;
        z = z.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64);
        z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z >> 40) as f32) / 8_388_608.0 - 1.0
    }

    impl Bench {
        fn new(budget: usize, ratio: usize) -> Self {
            let device = ReferenceDevice::new();
            let layer = KvLayer {
                n_kv_heads: 2,
                k_dim: DIM,
                v_dim: DIM,
                shared_kv: false,
                window: 0,
                index: Some(IndexLayer {
                    dim: DIM,
                    ratio,
                    budget,
                    dtype: DType::F16,
                }),
            };
            let config = CacheConfig {
                n_ctx: 256,
                n_seqs: 2,
                n_ubatch: 128,
                k_type: DType::F32,
                v_type: DType::F32,
            };
            let memory = SequenceMemory::new(&[layer], &[], config, &device).unwrap();
            Self {
                device,
                memory,
                score_bytes: SCORE_BYTES,
            }
        }

        fn tensor(&self, values: &[f32], shape: &[usize]) -> Tensor {
            let desc = TensorDesc::f32(shape);
            let buffer = self.device.alloc(desc.n_bytes() as u64, "test").unwrap();
            self.device
                .write(&buffer, 0, bytemuck::cast_slice(values))
                .unwrap();
            Tensor {
                desc,
                buffers: vec![buffer],
            }
        }

        /// Activations of one kind for these tokens: (sequence, position).
        fn activations(&self, kind: usize, tokens: &[(usize, i32)], shape: [usize; 2]) -> Tensor {
            let n = shape[0] * shape[1];
            let values: Vec<f32> = tokens
                .iter()
                .flat_map(|&(seq, p)| (0..n).map(move |i| noise(8 * seq + kind, p, i)))
                .collect();
            self.tensor(&values, &[tokens.len(), shape[0], shape[1]])
        }

        /// Appends a step and returns what its tokens attend to, a row a token, and the ops that ran.
        fn step(&mut self, tokens: &[SeqId]) -> (Vec<Vec<f32>>, Vec<&'static str>) {
            let ids: Vec<(SeqId, u32)> = tokens.iter().map(|&seq| (seq, 0)).collect();
            let reservation = self.memory.reserve(&ids).unwrap();
            let positions = &reservation.kv.positions;
            let n = tokens.len();
            let weights = Weights::default();
            let shape = StepShape {
                n_tokens: n,
                n_outputs: 0,
                max_len: 256,
                head: Head::Logits,
            };
            let mut step = StepGraph::new(
                shape,
                &weights,
                &self.memory,
                Precision::Strict,
                self.device.caps(),
            )
            .unwrap();
            let table: Vec<f32> = (0..=FINE)
                .flat_map(|row| (0..DIM / 2).map(move |pair| (row % FINE, pair)))
                .flat_map(|(p, pair)| {
                    let angle = p as f64 * 0.5_f64.powi(pair as i32);
                    [angle.cos() as f32, angle.sin() as f32]
                })
                .collect();
            let placed: Vec<(usize, i32)> = tokens
                .iter()
                .zip(positions)
                .map(|(seq, &position)| (seq.0, position))
                .collect();
            let bound = [
                self.activations(0, &placed, [N_HEADS, DIM]),
                self.activations(1, &placed, [2, DIM]),
                self.activations(2, &placed, [2, DIM]),
                self.activations(3, &placed, [3, DIM]),
                self.activations(4, &placed, [1, DIM]),
                self.tensor(&[1.0; DIM], &[DIM]),
                self.tensor(&table, &[FINE + 1, DIM / 2, 2]),
            ];
            let values: Vec<ValueId> = bound
                .iter()
                .map(|tensor| step.tensor("test", tensor))
                .collect();
            let [q, k, v, index_q, key, norm, rope_table] = values[..] else {
                unreachable!("seven values")
            };
            let indexer = Indexer {
                q: index_q,
                key,
                weights: None,
                scale: 0.1,
                pool: Some(Pool {
                    norm,
                    eps: 1e-6,
                    rope_table,
                    mode: RopeMode::Neox,
                    n_rot: DIM,
                }),
            };
            step.select([0, 0], &indexer, self.score_bytes).unwrap();
            let out = step.attend_selected([0, 0], 0, &SHAPE, [q, k, v]).unwrap();
            let mut graph = step.graph;
            graph.output(out);
            let plan = compile("test", graph, &self.device, &mut Arena::default()).unwrap();
            let ops = plan.steps.iter().map(|step| step.op.name()).collect();
            let buffer = plan.step_buffer.clone().unwrap();
            let mut words = vec![-1_i32; buffer.n_bytes() as usize / 4];
            let mut fill = |name: String, values: Vec<i32>| {
                let offset = plan.step_inputs[&name].0 / 4;
                words[offset..offset + values.len()].copy_from_slice(&values);
            };
            fill(input::POSITIONS.to_owned(), positions.clone());
            let rows = tokens.iter().map(|seq| seq.0 as i32).collect();
            fill(input::SEQ_ROWS.to_owned(), rows);
            fill(input::slots(0), reservation.kv.slots[0].clone());
            let (index, value) = reservation.kv.table_updates[0].iter().copied().unzip();
            fill(input::table_index(0), index);
            fill(input::table_value(0), value);
            let upload = Upload {
                buffer: &buffer,
                offset: 0,
                bytes: bytemuck::cast_slice(&words),
            };
            let recording = self.device.record(&Arc::new(plan)).unwrap();
            let readback = recording.plan.readback.as_ref();
            let pending = submit(&self.device, &recording, &[upload], readback).unwrap();
            let bytes = self.device.finish(pending).unwrap();
            let at = recording.plan.outputs[0].offset;
            let n_bytes = 4 * n * N_HEADS * DIM;
            let values: Vec<f32> = bytes[at..at + n_bytes]
                .chunks_exact(4)
                .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                .collect();
            let rows = values.chunks(N_HEADS * DIM).map(<[f32]>::to_vec).collect();
            (rows, ops)
        }

        /// The rows of a sequence that is appended in steps of these sizes.
        fn run(&mut self, steps: &[usize]) -> Vec<Vec<f32>> {
            let seq = self.memory.create().unwrap();
            steps
                .iter()
                .flat_map(|&n| self.step(&vec![seq; n]).0)
                .collect()
        }

        /// The pooled keys of a page, as stored.
        fn pooled(&self, page: usize) -> Vec<u8> {
            let pooled = self.memory.kv().layer(0).index.as_ref().unwrap().keys();
            let n_bytes = pooled.desc.n_bytes() / pooled.desc.shape[0];
            let mut bytes = vec![0; n_bytes];
            self.device
                .read(&pooled.buffers[0], (page * n_bytes) as u64, &mut bytes)
                .unwrap();
            bytes
        }
    }

    fn assert_close(a: &[Vec<f32>], b: &[Vec<f32>]) {
        assert_eq!(a.len(), b.len(), "rows");
        for (t, (a, b)) in a.iter().zip(b).enumerate() {
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() < 2e-6, "token {t}: {a} and {b}");
            }
        }
    }

    #[test]
    fn a_budget_that_holds_everything_is_dense_attention() {
        // 255 tokens fit 63 blocks and a tail of 3; the bucket of 256 does not.
        let (mut dense, mut sparse) = (Bench::new(256, 4), Bench::new(252, 4));
        let (seq, _) = (
            dense.memory.create().unwrap(),
            sparse.memory.create().unwrap(),
        );
        let ((a, dense_ops), (b, sparse_ops)) = (dense.step(&[seq; 101]), sparse.step(&[seq; 101]));
        assert!(dense_ops.contains(&"attention"), "{dense_ops:?}");
        assert!(
            dense_ops.contains(&"index_pool"),
            "keys are kept: {dense_ops:?}"
        );
        assert!(sparse_ops.contains(&"sparse_attention"), "{sparse_ops:?}");
        assert_close(&a, &b);
        assert_eq!(dense.pooled(0), sparse.pooled(0), "the same keys");
    }

    #[test]
    fn steps_and_turns_of_any_size_select_the_same() {
        let whole = Bench::new(16, 4).run(&[100]);
        let dense = Bench::new(256, 4).run(&[100]);
        assert_close(&whole[..19], &dense[..19]);
        let differ = |t: usize| {
            whole[t]
                .iter()
                .zip(&dense[t])
                .any(|(a, b)| (a - b).abs() > 0.05)
        };
        assert!((40..100).all(differ), "it does select");
        assert_close(&Bench::new(16, 4).run(&[37, 1, 1, 1, 60]), &whole);
        // Scores of 7 tokens at a time.
        let mut turns = Bench::new(16, 4);
        turns.score_bytes = 7 * 64 * 4;
        assert_close(&turns.run(&[100]), &whole);
    }

    #[test]
    fn blocks_are_pooled_again_after_a_truncation() {
        let mut bench = Bench::new(16, 4);
        let seq = bench.memory.create().unwrap();
        let (first, _) = bench.step(&[seq; 99]);
        let keys = bench.pooled(0);
        bench.memory.truncate(seq, 42).unwrap();
        let (again, _) = bench.step(&[seq; 57]);
        assert_close(&again, &first[42..]);
        assert_eq!(bench.pooled(0), keys, "bit for bit");
    }

    #[test]
    fn sequences_select_among_their_own_blocks() {
        let alone = |n_before: usize| {
            let mut bench = Bench::new(16, 4);
            for _ in 0..n_before {
                bench.memory.create().unwrap();
            }
            bench.run(&[60])
        };
        let mut bench = Bench::new(16, 4);
        let (a, b) = (
            bench.memory.create().unwrap(),
            bench.memory.create().unwrap(),
        );
        bench.step(&[a; 20]);
        bench.step(&[b; 33]);
        let (rows, _) = bench.step(&[[a; 40].as_slice(), &[b; 27]].concat());
        assert_close(&rows[..40], &alone(0)[20..]);
        assert_close(&rows[40..], &alone(1)[33..]);
    }
}
