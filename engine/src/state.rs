//! The memory of recurrent layers: the one description of its layout, and what going back means for it.
//!
//! Every sequence has a slot in the tensors of each layer, which nothing ever moves. A slot holds the state as of some
//! token, and records of the at most [`N_RECORDED`] tokens since (see the ops `delta_rule_step`, `delta_rule_chunk` and
//! `causal_conv`). The next step commits as many recorded tokens as the sequence still has: going back is a smaller
//! number in the step buffer. Nothing is cleared either, because a sequence that begins at position 0 reads nothing.

use gemel_core::TensorDesc;
use gemel_core::device::Device;
use gemel_core::error::DeviceError;
use gemel_core::graph::Tensor;

use crate::kv_cache::{CacheConfig, CacheError, SeqId};

/// Tokens that a sequence can go back by without a checkpoint: the longest draft that is verified at once.
pub const N_RECORDED: usize = 16;

/// What one recurrent layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayer {
    /// Channels of its short convolution.
    pub n_channels: usize,
    /// Tokens of the past that the convolution reads.
    pub history: usize,
    /// Sizes of its delta net, if it has one.
    pub delta: Option<DeltaSizes>,
}

impl StateLayer {
    /// A slot in the middle of a text, without the text: a row for each of its tensors, in the order of
    /// [`LayerState::tensors`]. `rows` makes so many numbers of a seed with mean 0 and standard deviation 1.
    ///
    /// Inputs of the convolution and updates are of size 1, keys of length 1, decays between one that forgets little and
    /// one that halves within a few tokens.
    pub(crate) fn sample(&self, rows: &dyn Fn(u64, usize) -> Vec<f32>) -> Vec<Vec<f32>> {
        let mut sample = vec![rows(4, (self.history + N_RECORDED) * self.n_channels)];
        if let Some(d) = self.delta {
            let scale = 1.0 / (d.k_dim as f32).sqrt();
            let state = rows(5, d.n_v_heads * d.v_dim * d.k_dim);
            sample.push(state.into_iter().map(|x| x * scale).collect());
            let (keys, updates) = (d.n_k_heads * d.k_dim, d.n_v_heads * d.v_dim);
            let width = keys + updates + d.n_v_heads;
            let record = rows(6, 2 * N_RECORDED * width).into_iter().enumerate();
            let record = record.map(|(i, x)| match i % width {
                i if i < keys => x * scale,
                i if i < keys + updates => x,
                _ => -0.1 * x.abs(),
            });
            sample.push(record.collect());
        }
        sample
    }
}

/// Sizes of a delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Query and key heads.
    pub n_k_heads: usize,
    /// Value heads.
    pub n_v_heads: usize,
    /// Channels of a key.
    pub k_dim: usize,
    /// Channels of a value.
    pub v_dim: usize,
}

impl DeltaSizes {
    /// Channels of queries, keys and values together.
    pub fn n_channels(&self) -> usize {
        2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim
    }
}

/// The state of one layer in device memory.
#[derive(Clone, Debug)]
pub struct LayerState {
    /// Inputs of the convolution by position, f32 `[n_slots, history + N_RECORDED, n_channels]`.
    pub ring: Tensor,
    /// Of the delta net: f32 `[n_slots, n_v_heads, v_dim, k_dim]`, and its records.
    pub delta: Option<[Tensor; 2]>,
}

impl LayerState {
    /// The ring, then what the delta net has: the first axis are the slots.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.ring).chain(self.delta.iter().flatten())
    }
}

/// Where a sequence stands in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// Tokens that the state holds.
    base: usize,
    /// Half of the record that holds the tokens since.
    half: i32,
}

/// The states of all recurrent layers.
#[derive(Debug)]
pub struct StateCache {
    layers: Vec<LayerState>,
    places: Vec<Place>,
}

/// The places of sequences before a step, to undo it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undo(Vec<(SeqId, Place)>);

/// The state of one sequence in host memory.
#[derive(Clone, Debug)]
pub struct SavedState {
    place: Place,
    bytes: Vec<u8>,
}

impl SavedState {
    /// Bytes of host memory.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The tensors of a layer.
fn descs(layer: &StateLayer, config: &CacheConfig) -> Vec<TensorDesc> {
    let n = config.n_seqs;
    let mut descs = vec![TensorDesc::f32([
        n,
        layer.history + N_RECORDED,
        layer.n_channels,
    ])];
    if let Some(d) = layer.delta {
        let record = d.n_k_heads * d.k_dim + d.n_v_heads * d.v_dim + d.n_v_heads;
        descs.push(TensorDesc::f32([n, d.n_v_heads, d.v_dim, d.k_dim]));
        descs.push(TensorDesc::f32([n, 2, N_RECORDED, record]));
    }
    descs
}

impl StateCache {
    /// Bytes that the states of these layers take.
    pub fn n_bytes(layers: &[StateLayer], config: &CacheConfig) -> u64 {
        let descs = layers.iter().flat_map(|layer| descs(layer, config));
        descs.map(|desc| desc.n_bytes() as u64).sum()
    }

    /// Bytes of the largest tensor of a layer: each is one binding.
    pub fn largest_tensor(layer: &StateLayer, config: &CacheConfig) -> u64 {
        let descs = descs(layer, config).into_iter();
        descs
            .map(|desc| desc.n_bytes() as u64)
            .max()
            .unwrap_or_default()
    }

    /// Allocates the states.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(
        layers: &[StateLayer],
        config: &CacheConfig,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        let alloc = |desc: TensorDesc| -> Result<Tensor, DeviceError> {
            let buffer = device.alloc(desc.n_bytes() as u64, "recurrent state")?;
            Ok(Tensor {
                desc,
                buffers: vec![buffer],
            })
        };
        let layers = layers
            .iter()
            .map(|layer| {
                let mut tensors = descs(layer, config).into_iter().map(alloc);
                let mut next = || tensors.next().transpose();
                let (ring, state, record) = (next()?, next()?, next()?);
                Ok(ring.map(|ring| LayerState {
                    ring,
                    delta: state.zip(record).map(|(state, record)| [state, record]),
                }))
            })
            .collect::<Result<Vec<_>, DeviceError>>()?;
        Ok(Self {
            layers: layers.into_iter().flatten().collect(),
            places: vec![Place::default(); config.n_seqs],
        })
    }

    /// Whether there is no recurrent layer.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The state of a recurrent layer, counted among these.
    pub fn layer(&self, index: usize) -> &LayerState {
        &self.layers[index]
    }

    /// Begins a sequence in a slot.
    pub fn create(&mut self, seq: SeqId) {
        self.set(seq, Place::default());
    }

    /// Whether a sequence can go back to `len` tokens.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_truncate(&self, seq: SeqId, len: usize) -> Result<(), CacheError> {
        let kept_from = self.place(seq).base;
        if len >= kept_from || len == 0 || self.is_empty() {
            return Ok(());
        }
        Err(CacheError::StateGone { len, kept_from })
    }

    /// A sequence was shortened to `len` tokens, which [`check_truncate`](Self::check_truncate) allowed.
    pub fn truncate(&mut self, seq: SeqId, len: usize) {
        if len == 0 {
            self.set(seq, Place::default());
        }
    }

    /// Notes a run of `n` tokens that begins at `position`. Returns its line of the commits: recorded tokens that the
    /// sequence still has, and the half of the record that holds them.
    pub fn advance(&mut self, seq: SeqId, position: usize, n: usize, undo: &mut Undo) -> [i32; 2] {
        let before = self.place(seq);
        undo.0.push((seq, before));
        self.set(
            seq,
            Place {
                base: position + n - n.min(N_RECORDED),
                half: 1 - before.half,
            },
        );
        [
            position.saturating_sub(before.base).min(N_RECORDED) as i32,
            before.half,
        ]
    }

    /// Undoes the runs of a step that did not take place.
    pub fn undo(&mut self, undo: &Undo) {
        for &(seq, place) in &undo.0 {
            self.set(seq, place);
        }
    }

    fn place(&self, seq: SeqId) -> Place {
        self.places.get(seq.0).copied().unwrap_or_default()
    }

    fn set(&mut self, seq: SeqId, place: Place) {
        if let Some(known) = self.places.get_mut(seq.0) {
            *known = place;
        }
    }

    /// The slot of a sequence in each tensor: tensor, offset and length in bytes.
    fn slots(&self, seq: SeqId) -> impl Iterator<Item = (&Tensor, u64, usize)> {
        self.tensors().map(move |tensor| {
            let n_bytes = tensor.desc.strides[0] * 4;
            (tensor, (seq.0 * n_bytes) as u64, n_bytes)
        })
    }

    /// A sequence begins as a copy of another, whose slot a device copies.
    pub fn fork(&mut self, from: SeqId, to: SeqId) {
        self.set(to, self.place(from));
    }

    /// All tensors of all layers, whose first axis are the slots.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(LayerState::tensors)
    }

    /// Copies the state of a sequence to the host.
    ///
    /// # Errors
    /// Device lost.
    pub fn save(&self, seq: SeqId, device: &dyn Device) -> Result<SavedState, DeviceError> {
        let total = self.slots(seq).map(|(_, _, n_bytes)| n_bytes).sum();
        let mut bytes = vec![0; total];
        let mut rest = bytes.as_mut_slice();
        for (tensor, offset, n_bytes) in self.slots(seq) {
            let (out, after) = rest.split_at_mut(n_bytes);
            device.read(&tensor.buffers[0], offset, out)?;
            rest = after;
        }
        Ok(SavedState {
            place: self.place(seq),
            bytes,
        })
    }

    /// Whether a saved state is of the same layers.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, saved: &SavedState) -> Result<(), CacheError> {
        let total: usize = self.slots(SeqId(0)).map(|(_, _, n_bytes)| n_bytes).sum();
        if saved.bytes.len() != total {
            return Err(CacheError::Layout);
        }
        Ok(())
    }

    /// Copies a saved state, which [`check`](Self::check) accepted, into the slot of a sequence.
    ///
    /// # Errors
    /// Device lost.
    pub fn restore(
        &mut self,
        seq: SeqId,
        saved: &SavedState,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        let mut rest = saved.bytes.as_slice();
        for (tensor, offset, n_bytes) in self.slots(seq) {
            let (bytes, after) = rest.split_at(n_bytes.min(rest.len()));
            device.write(&tensor.buffers[0], offset, bytes)?;
            rest = after;
        }
        self.set(seq, saved.place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::DType;
    use gemel_core::reference::ReferenceDevice;

    fn cache() -> StateCache {
        let config = CacheConfig {
            n_ctx: 256,
            n_seqs: 2,
            n_ubatch: 64,
            k_type: DType::F16,
            v_type: DType::F16,
        };
        let layer = StateLayer {
            n_channels: 6,
            history: 3,
            delta: None,
        };
        assert_eq!(
            StateCache::n_bytes(&[layer], &config),
            2 * 19 * 6 * 4,
            "the ring alone"
        );
        StateCache::new(&[layer], &config, &ReferenceDevice::new()).unwrap()
    }

    #[test]
    fn commits_follow_the_length() {
        let (mut cache, seq) = (cache(), SeqId(1));
        let mut undo = Undo::default();
        cache.create(seq);
        assert_eq!(cache.advance(seq, 0, 20, &mut undo), [0, 0], "a prompt");
        assert_eq!(cache.advance(seq, 20, 1, &mut undo), [16, 1], "all of it");
        assert_eq!(cache.advance(seq, 21, 4, &mut undo), [1, 0], "a draft");
        let mut failed = Undo::default();
        cache.advance(seq, 25, 1, &mut failed);
        cache.undo(&failed);
        // Two of four tokens are accepted.
        cache.check_truncate(seq, 23).unwrap();
        assert_eq!(cache.advance(seq, 23, 1, &mut undo), [2, 1], "two of four");
        let gone = cache.check_truncate(seq, 22).unwrap_err();
        assert_eq!(
            gone,
            CacheError::StateGone {
                len: 22,
                kept_from: 23
            },
            "committed by the next step"
        );
        cache.check_truncate(seq, 0).unwrap();
        cache.truncate(seq, 0);
        assert_eq!(
            cache.advance(seq, 0, 1, &mut undo),
            [0, 0],
            "from the start"
        );
    }
}
