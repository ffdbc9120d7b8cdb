//! Steps: token ids of several sequences -> logits or candidates, one submission each.
//!
//! A step is one upload (the step buffer), one replay of a recorded plan and one small read-back. Plans are made
//! once per shape bucket; what changes from step to step is data in the step buffer.

mod depth;

use std::collections::BTreeMap;
use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::device::{Device, Pending, Recording, Upload, submit};
use gemel_core::error::{DeviceError, GraphError};
use gemel_core::op::Cost;
use gemel_core::ops::argmax::Argmax;
use gemel_core::ops::softmax_stats::SoftmaxStats;
use gemel_core::ops::top_k_logits::TopKLogits;
use gemel_core::plan::{Arena, Plan, PlanError, compile};

use crate::blocks::{Head, Precision, StepGraph, StepShape, input, len_bucket, row_bucket};
use crate::gguf::GgufError;
use crate::kv_cache::{CacheConfig, CacheError, SeqId};
use crate::memory::{Checkpoint, MemoryError, Reservation, SavedSequence, SequenceMemory};
use crate::models::{Model, ModelInfo, Tables};
use crate::ngram;
use crate::weights::Weights;

/// A token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepToken {
    /// Its sequence.
    pub seq: SeqId,
    /// Its id.
    pub id: u32,
    /// Whether the distribution after it is wanted.
    pub output: bool,
}

/// The distribution after one token, as far as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutput {
    /// All logits.
    Logits(Vec<f32>),
    /// The most likely token.
    Argmax(u32),
    /// The most likely tokens in order, and the softmax statistics of all.
    TopK {
        /// Ids by descending logit.
        ids: Vec<u32>,
        /// Their logits.
        logits: Vec<f32>,
        /// Largest logit.
        max: f32,
        /// Sum over the vocabulary of exp(logit - max).
        sum: f32,
    },
}

/// Why a step did not run. The caches are as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// More tokens than a step takes.
    #[error("a step of {n} tokens exceeds the micro-batch of {n_ubatch}")]
    TooLong {
        /// Tokens given.
        n: usize,
        /// The limit.
        n_ubatch: usize,
    },
    /// The file of a table that is read row by row.
    #[error(transparent)]
    Table(#[from] GgufError),
    /// The graph could not be built or placed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<MemoryError> for StepError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Cache(error) => error.into(),
            MemoryError::Device(error) => error.into(),
        }
    }
}

impl From<GraphError> for StepError {
    fn from(error: GraphError) -> Self {
        Self::Plan(error.into())
    }
}

/// A model on a device with its caches and recorded plans.
#[derive(Debug)]
pub struct Context {
    device: Arc<dyn Device>,
    model: Arc<dyn Model>,
    weights: Arc<Weights>,
    tables: Tables,
    memory: SequenceMemory,
    precision: Precision,
    arena: Arena,
    plans: BTreeMap<StepShape, Recording>,
    /// The plan of [`Context::fork`], made at first use.
    fork: Option<Recording>,
    /// What [`Context::assume`] fills with, made at first use.
    filling: Option<depth::Filling>,
    step_words: Vec<i32>,
}

/// A step in flight.
#[derive(Debug)]
pub struct InFlight {
    pending: Pending,
    plan: Arc<Plan>,
    n_outputs: usize,
    head: Head,
}

impl Context {
    /// Allocates the caches.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(
        device: Arc<dyn Device>,
        model: Arc<dyn Model>,
        weights: Arc<Weights>,
        config: CacheConfig,
        precision: Precision,
    ) -> Result<Self, DeviceError> {
        let tables = Tables::upload(&*model, config.n_ctx, &*device)?;
        let memory =
            SequenceMemory::new(&model.kv_layers(), &model.state_layers(), config, &*device)?;
        Ok(Self {
            device,
            model,
            weights,
            tables,
            memory,
            precision,
            arena: Arena::default(),
            plans: BTreeMap::new(),
            fork: None,
            filling: None,
            step_words: Vec::new(),
        })
    }

    /// Sizes of the model.
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// What is remembered of the sequences.
    pub fn cache(&self) -> &SequenceMemory {
        &self.memory
    }

    /// Bytes of device memory for activations and scratch, which all plans share.
    pub fn scratch_bytes(&self) -> u64 {
        self.arena.n_bytes()
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// All slots taken.
    pub fn create(&mut self) -> Result<SeqId, CacheError> {
        self.memory.create()
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// No such sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.memory.remove(seq)
    }

    /// Shortens a sequence.
    ///
    /// # Errors
    /// No such sequence; a window or a recurrent state that is gone.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), CacheError> {
        self.memory.truncate(seq, len)
    }

    /// Copies to the host what a sequence needs to come back to this point at any later time.
    ///
    /// # Errors
    /// No such sequence; device lost.
    pub fn checkpoint(&self, seq: SeqId) -> Result<Checkpoint, StepError> {
        Ok(self.memory.checkpoint(seq, &*self.device)?)
    }

    /// Takes a sequence back to one of its checkpoints.
    ///
    /// # Errors
    /// No such sequence, or a shorter one; a window that is gone; device lost.
    pub fn restore(&mut self, seq: SeqId, checkpoint: &Checkpoint) -> Result<(), StepError> {
        Ok(self.memory.restore(seq, checkpoint, &*self.device)?)
    }

    /// Begins a sequence as a copy of another. The device copies; the host sends a few words a page.
    ///
    /// # Errors
    /// No such sequence; no room, in which case nothing changes; out of device memory, device lost.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, StepError> {
        let recording = if let Some(recording) = &self.fork {
            recording.clone()
        } else {
            let recording = self.memory.record_fork(&*self.device, &mut self.arena)?;
            self.fork.insert(recording).clone()
        };
        Ok(self.memory.fork(seq, &recording, &*self.device)?)
    }

    /// Copies a whole sequence to the host.
    ///
    /// # Errors
    /// No such sequence; device lost.
    pub fn save(&self, seq: SeqId) -> Result<SavedSequence, StepError> {
        Ok(self.memory.save(seq, &*self.device)?)
    }

    /// Makes a new sequence of one that this model saved with caches of the same types.
    ///
    /// # Errors
    /// No room, another model's, in which case nothing changes; device lost.
    pub fn load(&mut self, saved: &SavedSequence) -> Result<SeqId, StepError> {
        Ok(self.memory.load(saved, &*self.device)?)
    }

    /// The recorded plan of a bucket, made at first use.
    ///
    /// # Errors
    /// Values beyond the device's limits, kernels that do not compile, out of memory.
    pub fn plan(&mut self, shape: StepShape) -> Result<Recording, StepError> {
        if let Some(recording) = self.plans.get(&shape) {
            return Ok(recording.clone());
        }
        let mut step = StepGraph::new(
            shape,
            &self.weights,
            &self.memory,
            self.precision,
            self.device.caps(),
        )?;
        let logits = self.model.build(&mut step, &self.tables)?;
        let mut graph = step.graph;
        if let Some(logits) = logits {
            match shape.head {
                Head::Logits => {
                    graph.output(logits);
                }
                Head::Argmax => {
                    let ids = graph.apply("argmax", Argmax, &[logits])?;
                    graph.output(ids);
                }
                Head::TopK(k) => {
                    let k = k.min(self.model.info().n_vocab);
                    let parts = graph.apply_multi("top_k", TopKLogits { k }, &[logits], &[])?;
                    let stats = graph.apply("softmax_stats", SoftmaxStats, &[logits])?;
                    graph.output(parts[0]);
                    graph.output(parts[1]);
                    graph.output(stats);
                }
            }
        }
        let label = format!(
            "{}[n_tokens={},n_outputs={},max_len={}]",
            self.model.info().arch,
            shape.n_tokens,
            shape.n_outputs,
            shape.max_len
        );
        let scratch = self.scratch_bytes();
        let plan = compile(&label, graph, &*self.device, &mut self.arena)?;
        if self.scratch_bytes() > scratch {
            self.drop_plans();
        }
        let recording = self.device.record(&Arc::new(plan))?;
        self.plans.insert(shape, recording.clone());
        Ok(recording)
    }

    /// Drops plans, which are made again when they are needed: once the arena has grown, they would keep the memory that
    /// it outgrew.
    fn drop_plans(&mut self) {
        self.plans.clear();
        self.fork = None;
        if let Some(filling) = &mut self.filling {
            filling.drop_plans();
        }
    }

    /// The bucket of a step.
    fn shape_of(&self, n_tokens: usize, n_outputs: usize, longest: usize, head: Head) -> StepShape {
        StepShape {
            n_tokens: row_bucket(n_tokens).min(self.memory.config().n_ubatch.max(n_tokens)),
            n_outputs: if n_outputs == 0 {
                0
            } else {
                row_bucket(n_outputs)
            },
            max_len: len_bucket(longest, self.memory.config().n_ctx),
            head: if n_outputs == 0 { Head::Argmax } else { head },
        }
    }

    /// Submits a step. The tokens of one sequence are given in order.
    ///
    /// # Errors
    /// See [`StepError`]; the caches are as before.
    pub fn submit(&mut self, tokens: &[StepToken], head: Head) -> Result<InFlight, StepError> {
        let n_vocab = self.model.info().n_vocab;
        if let Some(bad) = tokens.iter().find(|token| token.id as usize >= n_vocab) {
            return Err(StepError::Token {
                id: bad.id,
                n_vocab,
            });
        }
        let n_ubatch = self.memory.config().n_ubatch;
        if tokens.len() > n_ubatch {
            return Err(StepError::TooLong {
                n: tokens.len(),
                n_ubatch,
            });
        }
        let ids: Vec<(SeqId, u32)> = tokens.iter().map(|token| (token.seq, token.id)).collect();
        let reservation = self.memory.reserve(&ids)?;
        let result = self.submit_reserved(tokens, head, &reservation);
        if result.is_err() {
            self.memory.cancel(&reservation);
        }
        result
    }

    fn submit_reserved(
        &mut self,
        tokens: &[StepToken],
        head: Head,
        reservation: &Reservation,
    ) -> Result<InFlight, StepError> {
        let outputs: Vec<i32> = (0i32..)
            .zip(tokens)
            .filter(|(_, token)| token.output)
            .map(|(row, _)| row)
            .collect();
        let longest = reservation
            .kv
            .positions
            .iter()
            .max()
            .map_or(1, |&p| p as usize + 1);
        let shape = self.shape_of(tokens.len(), outputs.len(), longest, head);
        let recording = self.plan(shape)?;
        let plan = recording.plan.clone();
        let runs = if plan.step_inputs.contains_key(input::RUNS) {
            reservation.runs.clone()?
        } else {
            Vec::new()
        };

        let contexts = self.ngram_contexts(tokens, &reservation.kv.positions);
        let ngram_rows = match self.model.ngrams() {
            Some(table) => table.read(&contexts)?,
            None => Vec::new(),
        };

        self.step_words.clear();
        let words = plan
            .step_buffer
            .as_ref()
            .map_or(0, |buffer| buffer.n_bytes() / 4);
        // -1 is "none" for every index of a step, and padding tokens have no sequence.
        self.step_words.resize(words as usize, -1);
        let mut fill = |name: &str, values: &mut dyn Iterator<Item = i32>| {
            if let Some((offset, desc)) = plan.step_inputs.get(name) {
                let region: &mut [i32] =
                    &mut self.step_words[offset / 4..offset / 4 + desc.n_elems()];
                for (word, value) in region.iter_mut().zip(values) {
                    *word = value;
                }
            }
        };
        fill(
            input::TOKENS,
            &mut tokens.iter().map(|token| token.id.cast_signed()),
        );
        fill(
            input::POSITIONS,
            &mut reservation.kv.positions.iter().copied(),
        );
        fill(
            input::SEQ_ROWS,
            &mut tokens.iter().map(|token| token.seq.0 as i32),
        );
        fill(input::OUTPUTS, &mut outputs.iter().copied());
        fill(input::NGRAMS, &mut contexts.iter().copied());
        // Rows without a token are zeros: -1 would be NaN.
        let ngram_rows = ngram_rows.iter().map(|value| value.to_bits().cast_signed());
        let mut ngram_rows = ngram_rows.chain(std::iter::repeat(0));
        fill(input::NGRAM_ROWS, &mut ngram_rows);
        fill(input::RUNS, &mut runs.iter().flatten().copied());
        fill(
            input::COMMITS,
            &mut reservation.commits.iter().flatten().copied(),
        );
        for (group, (slots, updates)) in reservation
            .kv
            .slots
            .iter()
            .zip(&reservation.kv.table_updates)
            .enumerate()
        {
            fill(&input::slots(group), &mut slots.iter().copied());
            fill(
                &input::table_index(group),
                &mut updates.iter().map(|&(index, _)| index),
            );
            fill(
                &input::table_value(group),
                &mut updates.iter().map(|&(_, page)| page),
            );
        }
        let uploads: Vec<Upload<'_>> = plan
            .step_buffer
            .iter()
            .map(|buffer| Upload {
                buffer,
                offset: 0,
                bytes: bytemuck::cast_slice(&self.step_words),
            })
            .collect();
        let pending = submit(&*self.device, &recording, &uploads, plan.readback.as_ref())?;
        Ok(InFlight {
            pending,
            plan,
            n_outputs: outputs.len(),
            head: shape.head,
        })
    }

    /// The contexts of the n-grams of a step, `[n_tokens, longest]`; empty for models without.
    fn ngram_contexts(&self, tokens: &[StepToken], positions: &[i32]) -> Vec<i32> {
        let Some(table) = self.model.ngrams() else {
            return Vec::new();
        };
        let placed = tokens.iter().zip(positions);
        placed
            .flat_map(|(token, &position)| {
                let ids = self.memory.ids(token.seq);
                ngram::context(ids, position as usize, table.hashes.longest())
            })
            .collect()
    }

    /// Has the rows of an n-gram table in a file read ahead for the tokens `next`, which follow `before`.
    fn prefetch_ngrams(&self, before: &[u32], next: &[u32]) {
        let Some(table) = self
            .model
            .ngrams()
            .filter(|table| table.in_file().is_some())
        else {
            return;
        };
        let longest = table.hashes.longest();
        let before = &before[before.len().saturating_sub(longest - 1)..];
        let ids = [before, next].concat();
        let contexts: Vec<i32> = (before.len()..ids.len())
            .flat_map(|position| ngram::context(&ids, position, longest))
            .collect();
        table.prefetch(&contexts);
    }

    /// Waits for a step and returns the outputs of its output tokens, in token order.
    ///
    /// # Errors
    /// Device lost; deadline passed.
    pub fn finish(&self, step: InFlight) -> Result<Vec<StepOutput>, StepError> {
        let bytes = self.device.finish(step.pending)?;
        let row = |index: usize, row: usize| -> Vec<u32> {
            let output = &step.plan.outputs[index];
            words(&bytes, output.offset, &output.desc, row)
        };
        let floats = |words: Vec<u32>| words.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        Ok((0..step.n_outputs)
            .map(|r| match step.head {
                Head::Logits => StepOutput::Logits(floats(row(0, r))),
                Head::Argmax => {
                    // One value a row: the output is a vector over the rows.
                    StepOutput::Argmax(row(0, 0)[r])
                }
                Head::TopK(_) => {
                    let stats = floats(row(2, r));
                    StepOutput::TopK {
                        ids: row(0, r),
                        logits: floats(row(1, r)),
                        max: stats[0],
                        sum: stats[1],
                    }
                }
            })
            .collect())
    }

    /// Submits a step and waits for it.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn step(&mut self, tokens: &[StepToken], head: Head) -> Result<Vec<StepOutput>, StepError> {
        let step = self.submit(tokens, head)?;
        self.finish(step)
    }

    /// Caches a prompt in micro-batches and returns the distribution after its last token.
    /// `progress` gets the number of tokens done and returns whether to go on.
    ///
    /// Returns `None` if it was told to stop, or if `ids` is empty; the tokens done so far stay cached.
    ///
    /// # Errors
    /// See [`StepError`]; a prompt that does not fit is refused before its first step.
    pub fn prefill(
        &mut self,
        seq: SeqId,
        ids: &[u32],
        head: Head,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<StepOutput>, StepError> {
        let n_ctx = self.memory.config().n_ctx;
        let needed = self.memory.len(seq)? + ids.len();
        if needed > n_ctx {
            return Err(CacheError::Overflow { needed, n_ctx }.into());
        }
        let n_ubatch = self.memory.config().n_ubatch;
        let mut done = 0;
        for chunk in ids.chunks(n_ubatch.max(1)) {
            let last = done + chunk.len() == ids.len();
            let tokens: Vec<StepToken> = chunk
                .iter()
                .enumerate()
                .map(|(i, &id)| StepToken {
                    seq,
                    id,
                    output: last && i + 1 == chunk.len(),
                })
                .collect();
            let (before, next) = ids.split_at(done + chunk.len());
            if !last {
                self.prefetch_ngrams(before, &next[..n_ubatch.min(next.len())]);
            }
            let mut outputs = self.step(&tokens, head)?;
            done += chunk.len();
            if last {
                return Ok(outputs.pop());
            }
            if !progress(done) {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

/// Work of one kind of node in a step: the same op at the same place of every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct OpWork {
    /// Name of the op.
    pub op: &'static str,
    /// Label of the nodes without their layer, e.g. `ffn_down`.
    pub node: String,
    /// Launches.
    pub launches: usize,
    /// Unavoidable work.
    pub cost: Cost,
}

/// Device time of one kind of node in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// What was done.
    pub work: OpWork,
    /// Nanoseconds on the device.
    pub ns: u64,
}

impl Context {
    /// The work of a step of so many tokens, all with an output, of which the longest sequence has `len` at its end: by
    /// the ops' own account, largest number of bytes first.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn step_work(&mut self, n_tokens: usize, len: usize) -> Result<Vec<OpWork>, StepError> {
        let recording = self.plan(self.shape_of(n_tokens, n_tokens, len, Head::Argmax))?;
        let times = by_node(&recording.plan, std::iter::repeat(0));
        let mut list: Vec<OpWork> = times.into_iter().map(|entry| entry.work).collect();
        list.sort_by_key(|work| std::cmp::Reverse(work.cost.bytes));
        Ok(list)
    }

    /// Times such a step launch by launch, the medians of some repetitions, summed over layers, slowest first. `None`
    /// where the device cannot tell.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn profile_step(
        &mut self,
        n_tokens: usize,
        len: usize,
        repetitions: usize,
    ) -> Result<Option<Vec<OpTime>>, StepError> {
        let recording = self.plan(self.shape_of(n_tokens, n_tokens, len, Head::Argmax))?;
        let mut runs = Vec::new();
        for _ in 0..repetitions.max(1) {
            let Some(times) = self.device.profile(&recording)? else {
                return Ok(None);
            };
            runs.push(times);
        }
        let n_launches = runs.first().map_or(0, Vec::len);
        let median = |launch: usize| {
            let mut times: Vec<u64> = runs
                .iter()
                .filter_map(|run| run.get(launch).copied())
                .collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        let times: Vec<u64> = (0..n_launches).map(median).collect();
        let mut list = by_node(&recording.plan, times.into_iter());
        list.sort_by_key(|entry| std::cmp::Reverse(entry.ns));
        Ok(Some(list))
    }
}

/// The steps of a plan by op and node, summed over layers; `times` has one entry a launch.
fn by_node(plan: &Plan, mut times: impl Iterator<Item = u64>) -> Vec<OpTime> {
    let mut sums: BTreeMap<(&'static str, String), OpTime> = BTreeMap::new();
    for step in &plan.steps {
        let op = step.op.name();
        let node = without_layer(&step.label);
        let sum = sums.entry((op, node.clone())).or_insert(OpTime {
            work: OpWork {
                op,
                node,
                launches: 0,
                cost: Cost::default(),
            },
            ns: 0,
        });
        sum.work.launches += step.launches.len();
        sum.work.cost = sum.work.cost + step.cost;
        sum.ns += times.by_ref().take(step.launches.len()).sum::<u64>();
    }
    sums.into_values().collect()
}

/// A node's label with every `blk.N.` left out.
fn without_layer(label: &str) -> String {
    let mut parts = label.split("blk.");
    let mut node = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        node.push_str(part.split_once('.').map_or(part, |(_, rest)| rest));
    }
    node
}

/// The 32-bit words of one row of an output in the read-back.
fn words(bytes: &[u8], offset: usize, desc: &TensorDesc, row: usize) -> Vec<u32> {
    let n = desc.last();
    let start = offset + row * n * 4;
    bytes[start..start + n * 4]
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}
