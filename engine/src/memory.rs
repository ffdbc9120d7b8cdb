//! All that a model remembers of its sequences: keys and values in pages, recurrent states in slots, the ids of the
//! tokens. Every operation on a sequence is one operation here, so that its parts cannot disagree.

use std::sync::Arc;

use gemel_core::device::{Device, Recording, Upload, submit};
use gemel_core::error::{DeviceError, GraphError};
use gemel_core::graph::{Graph, Tensor};
use gemel_core::ops::copy_rows::CopyRows;
use gemel_core::plan::{Arena, PlanError, compile};
use gemel_core::{DType, TensorDesc};

use crate::kv_cache::{self, CacheConfig, CacheError, KvCache, KvLayer, SavedPages, SeqId};
use crate::state::{SavedState, StateCache, StateLayer, Undo};

/// Step inputs of a fork: slots, and pages of each group, (from, to) each.
const FORK_SLOTS: &str = "fork.slots";

fn fork_pages(group: usize) -> String {
    format!("fork.pages.{group}")
}

/// The memory of all sequences.
#[derive(Debug)]
pub struct SequenceMemory {
    kv: KvCache,
    states: StateCache,
    /// Ids of the tokens of each sequence, by slot: all of them, so that any truncation is exact.
    ids: Vec<Vec<u32>>,
}

/// Where the tokens of a step go.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// Positions and cells.
    pub kv: kv_cache::Reservation,
    /// The runs of the step: (slot, first row, rows, position) each; or which sequence's tokens are not neighbours.
    pub runs: Result<Vec<[i32; 4]>, CacheError>,
    /// For each run: recorded tokens to commit, and the half of the record that holds them.
    pub commits: Vec<[i32; 2]>,
    undo: Undo,
}

/// A point to which a sequence can go back however long ago it was, as long as its keys and values are cached.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    len: usize,
    state: SavedState,
}

impl Checkpoint {
    /// Tokens of the sequence at that point.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sequence had no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of host memory.
    pub fn n_bytes(&self) -> usize {
        self.state.n_bytes()
    }
}

/// A whole sequence in host memory.
#[derive(Clone, Debug)]
pub struct SavedSequence {
    kv: SavedPages,
    state: SavedState,
    ids: Vec<u32>,
}

impl SavedSequence {
    /// Bytes of host memory.
    pub fn n_bytes(&self) -> usize {
        self.kv.n_bytes() + self.state.n_bytes() + size_of_val(&*self.ids)
    }
}

/// Why a checkpoint was not taken or not returned to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The caches refuse.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl SequenceMemory {
    /// Allocates caches and states.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(
        kv_layers: &[KvLayer],
        state_layers: &[StateLayer],
        config: CacheConfig,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            states: StateCache::new(state_layers, &config, device)?,
            ids: vec![Vec::new(); config.n_seqs],
            kv: KvCache::new(kv_layers, config, device)?,
        })
    }

    /// Sizes and types.
    pub fn config(&self) -> &CacheConfig {
        self.kv.config()
    }

    /// Keys and values.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Recurrent states.
    pub fn states(&self) -> &StateCache {
        &self.states
    }

    /// Ids of the tokens of a sequence, the first one first; empty if there is no such sequence.
    pub fn ids(&self, seq: SeqId) -> &[u32] {
        self.ids.get(seq.0).map_or(&[], Vec::as_slice)
    }

    fn set_ids(&mut self, seq: SeqId, ids: Vec<u32>) {
        if let Some(known) = self.ids.get_mut(seq.0) {
            *known = ids;
        }
    }

    /// Forgets the ids of tokens that a sequence does not have.
    fn cut_ids(&mut self, seq: SeqId) {
        let len = self.kv.len(seq).unwrap_or(0);
        if let Some(ids) = self.ids.get_mut(seq.0) {
            ids.truncate(len);
        }
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// All slots are taken.
    pub fn create(&mut self) -> Result<SeqId, CacheError> {
        let seq = self.kv.create()?;
        self.states.create(seq);
        self.set_ids(seq, Vec::new());
        Ok(seq)
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// No such sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.kv.remove(seq)?;
        self.set_ids(seq, Vec::new());
        Ok(())
    }

    /// Tokens of a sequence.
    ///
    /// # Errors
    /// No such sequence.
    pub fn len(&self, seq: SeqId) -> Result<usize, CacheError> {
        self.kv.len(seq)
    }

    /// Shortens a sequence to its first `len` tokens.
    ///
    /// # Errors
    /// No such sequence; a window that was given back, or a state that cannot be had again. Nothing changes then.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), CacheError> {
        if len >= self.kv.len(seq)? {
            return Ok(());
        }
        self.states.check_truncate(seq, len)?;
        self.kv.truncate(seq, len)?;
        self.states.truncate(seq, len);
        self.cut_ids(seq);
        Ok(())
    }

    /// Takes room for one token of each listed sequence, in order, and notes its id.
    ///
    /// # Errors
    /// No such sequence, context overflow, no free pages; a sequence with a recurrent state whose tokens are not
    /// neighbours. Nothing changes then.
    pub fn reserve(&mut self, tokens: &[(SeqId, u32)]) -> Result<Reservation, CacheError> {
        let seqs: Vec<SeqId> = tokens.iter().map(|&(seq, _)| seq).collect();
        let reservation = self.reserve_seqs(&seqs)?;
        for &(seq, id) in tokens {
            if let Some(ids) = self.ids.get_mut(seq.0) {
                ids.push(id);
            }
        }
        Ok(reservation)
    }

    fn reserve_seqs(&mut self, tokens: &[SeqId]) -> Result<Reservation, CacheError> {
        let kv = self.kv.reserve(tokens)?;
        let mut reservation = Reservation {
            runs: runs(tokens, &kv.positions),
            kv,
            commits: Vec::new(),
            undo: Undo::default(),
        };
        if self.states.is_empty() {
            return Ok(reservation);
        }
        match &reservation.runs {
            Ok(runs) => {
                for &[slot, _, n, position] in runs {
                    reservation.commits.push(self.states.advance(
                        SeqId(slot as usize),
                        position as usize,
                        n as usize,
                        &mut reservation.undo,
                    ));
                }
                Ok(reservation)
            }
            Err(error) => {
                let error = error.clone();
                self.kv.cancel(&reservation.kv);
                Err(error)
            }
        }
    }

    /// Undoes a reservation whose step did not run.
    pub fn cancel(&mut self, reservation: &Reservation) {
        self.kv.cancel(&reservation.kv);
        self.states.undo(&reservation.undo);
        for slot in 0..self.ids.len() {
            self.cut_ids(SeqId(slot));
        }
    }

    /// Copies to the host what a sequence cannot have again by being shortened: its recurrent state.
    ///
    /// # Errors
    /// No such sequence; device lost.
    pub fn checkpoint(&self, seq: SeqId, device: &dyn Device) -> Result<Checkpoint, MemoryError> {
        Ok(Checkpoint {
            len: self.kv.len(seq)?,
            state: self.states.save(seq, device)?,
        })
    }

    /// The graph that copies a sequence within the caches: as many moves in each group as a sequence has pages.
    fn fork_graph(&self) -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let slots = graph.step_input(FORK_SLOTS, DType::I32, [1, 2]);
        let mut pages = Vec::new();
        for group in 0..self.kv.n_groups() {
            let n = self.kv.table(group).desc.last();
            pages.push(graph.step_input(fork_pages(group), DType::I32, [n, 2]));
        }
        let kv = self.kv.tensors_by_group();
        let kv = kv.map(|(group, tensor)| (pages[group], tensor));
        for (moves, tensor) in kv.chain(self.states.tensors().map(|tensor| (slots, tensor))) {
            // Whatever the type, rows of words: pages or slots.
            let n_rows = tensor.desc.shape[0];
            let words = Tensor {
                desc: TensorDesc::i32([n_rows, tensor.desc.n_bytes() / 4 / n_rows.max(1)]),
                buffers: tensor.buffers.clone(),
            };
            let table = graph.bind("memory", &words);
            graph.apply_multi("fork", CopyRows, &[moves], &[table])?;
        }
        Ok(graph)
    }

    /// The recording of [`fork`](Self::fork).
    ///
    /// # Errors
    /// Out of device memory; device lost.
    pub fn record_fork(
        &self,
        device: &dyn Device,
        arena: &mut Arena,
    ) -> Result<Recording, PlanError> {
        let plan = compile("fork", self.fork_graph()?, device, arena)?;
        Ok(device.record(&Arc::new(plan))?)
    }

    /// Begins a sequence as a copy of another, made by the device: `recording` is that of
    /// [`record_fork`](Self::record_fork).
    ///
    /// # Errors
    /// No such sequence; all slots or pages are taken, in which case nothing changes; device lost.
    pub fn fork(
        &mut self,
        seq: SeqId,
        recording: &Recording,
        device: &dyn Device,
    ) -> Result<SeqId, MemoryError> {
        let (new, moves) = self.kv.fork(seq)?;
        self.states.fork(seq, new);
        self.set_ids(new, self.ids(seq).to_vec());
        for group in 0..self.kv.n_groups() {
            let table = self.kv.table(group);
            let row = self.kv.page_row(new, group)?;
            let at = new.0 * table.desc.last() * 4;
            device.write(&table.buffers[0], at as u64, bytemuck::cast_slice(&row))?;
        }
        let plan = &recording.plan;
        let Some(buffer) = &plan.step_buffer else {
            return Ok(new);
        };
        let mut words = vec![-1i32; (buffer.n_bytes() / 4) as usize];
        let mut fill = |name: &str, moves: &[[i32; 2]]| {
            if let Some((offset, _)) = plan.step_inputs.get(name) {
                let values = moves.iter().flatten();
                for (word, &value) in words[offset / 4..].iter_mut().zip(values) {
                    *word = value;
                }
            }
        };
        fill(FORK_SLOTS, &[[seq.0 as i32, new.0 as i32]]);
        for (group, moves) in moves.iter().enumerate() {
            fill(&fork_pages(group), moves);
        }
        let upload = Upload {
            buffer,
            offset: 0,
            bytes: bytemuck::cast_slice(&words),
        };
        let pending = submit(device, recording, &[upload], None)?;
        device.finish(pending)?;
        Ok(new)
    }

    /// Copies a whole sequence to the host, a pending rollback included.
    ///
    /// # Errors
    /// No such sequence; device lost.
    pub fn save(&self, seq: SeqId, device: &dyn Device) -> Result<SavedSequence, MemoryError> {
        Ok(SavedSequence {
            kv: self.kv.save(seq, device)?,
            state: self.states.save(seq, device)?,
            ids: self.ids(seq).to_vec(),
        })
    }

    /// Makes a new sequence of a saved one.
    ///
    /// # Errors
    /// All slots or pages are taken, or another model's, in which case nothing changes; device lost.
    pub fn load(
        &mut self,
        saved: &SavedSequence,
        device: &dyn Device,
    ) -> Result<SeqId, MemoryError> {
        self.states.check(&saved.state)?;
        let seq = self.kv.restore(&saved.kv, device)?;
        self.states.restore(seq, &saved.state, device)?;
        self.set_ids(seq, saved.ids.clone());
        Ok(seq)
    }

    /// Takes a sequence back to one of its checkpoints.
    ///
    /// # Errors
    /// No such sequence; one that is shorter than the checkpoint; a window that was given back; device lost. Nothing
    /// changes unless the device is lost.
    pub fn restore(
        &mut self,
        seq: SeqId,
        checkpoint: &Checkpoint,
        device: &dyn Device,
    ) -> Result<(), MemoryError> {
        let len = self.kv.len(seq)?;
        if checkpoint.len > len {
            return Err(CacheError::Ahead {
                checkpoint: checkpoint.len,
                len,
            }
            .into());
        }
        self.states.check(&checkpoint.state)?;
        self.kv.truncate(seq, checkpoint.len)?;
        self.cut_ids(seq);
        self.states.restore(seq, &checkpoint.state, device)?;
        Ok(())
    }
}

/// The runs of a step: (slot row of the sequence, first row, number of rows, position of the first row) each.
///
/// # Errors
/// A sequence whose tokens are not neighbours.
fn runs(tokens: &[SeqId], positions: &[i32]) -> Result<Vec<[i32; 4]>, CacheError> {
    let mut runs: Vec<[i32; 4]> = Vec::new();
    for (row, (seq, &position)) in (0i32..).zip(tokens.iter().zip(positions)) {
        let slot = seq.0 as i32;
        if let Some(run) = runs.last_mut()
            && run[0] == slot
        {
            run[2] += 1;
        } else if runs.iter().any(|run| run[0] == slot) {
            return Err(CacheError::Scattered { seq: seq.0 });
        } else {
            runs.push([slot, row, 1, position]);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_of_one_sequence() {
        assert_eq!(
            runs(&[3, 3, 0, 2, 2, 2].map(SeqId), &[7, 8, 0, 64, 65, 66]).unwrap(),
            [[3, 0, 2, 7], [0, 2, 1, 0], [2, 3, 3, 64]],
            "slot, first row, rows, position"
        );
        assert!(runs(&[], &[]).unwrap().is_empty(), "nothing");
        assert_eq!(
            runs(&[1, 0, 1].map(SeqId), &[0, 0, 1]).unwrap_err(),
            CacheError::Scattered { seq: 1 },
            "interleaved"
        );
    }
}
