//! The paged cache of keys and values: the one description of its layout, and all operations on it.
//!
//! Cells come in pages of [`PAGE`] tokens. A sequence owns a list of pages for each group of layers with the same
//! window; the lists live in a page table in device memory and are extended by a few words a step. Nothing is ever
//! moved, and nothing here costs more when more tokens are cached.
//!
//! A layer with a sliding window gives a page back once no later token can see any of it.

use gemel_core::device::Device;
use gemel_core::error::DeviceError;
use gemel_core::graph::Tensor;
use gemel_core::{DType, PAGE, TensorDesc};

use crate::memory::MemoryError;

/// What one layer caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Channels of a key.
    pub k_dim: usize,
    /// Channels of a value.
    pub v_dim: usize,
    /// Whether values are the first `v_dim` channels of the keys (latent attention) and not cached on their own.
    pub shared_kv: bool,
    /// Sliding window in tokens, 0 for none.
    pub window: usize,
    /// What its indexer caches, if it selects what it attends to. Such a layer has no window.
    pub index: Option<IndexLayer>,
}

/// What the indexer of a sparse layer caches, beside keys and values and in the same pages: whatever moves, ends or
/// shortens a sequence holds for its indexer too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLayer {
    /// Channels of a key of the indexer.
    pub dim: usize,
    /// Tokens of a block. Above 1, keys are pooled by block; 1: a token's key is scored itself.
    pub ratio: usize,
    /// Most selected tokens, a whole number of blocks.
    pub budget: usize,
    /// Narrowest type of its keys, which otherwise have the type of the attention's keys: a selection is more
    /// sensitive than a score.
    pub dtype: DType,
}

impl IndexLayer {
    /// Blocks that a token selects.
    pub fn n_selected(&self) -> usize {
        (self.budget / self.ratio.max(1)).max(1)
    }

    /// The type of its keys beside attention's keys of this type.
    pub fn key_type(&self, k_type: DType) -> DType {
        if k_type.bits_per_elem() > self.dtype.bits_per_elem() {
            k_type
        } else {
            self.dtype
        }
    }

    /// The longest sequence that is attended to as a whole: all selected blocks, and an incomplete one.
    pub fn dense_len(&self) -> usize {
        self.n_selected() * self.ratio + self.ratio - 1
    }
}

/// Sizes and types of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Most tokens of one sequence.
    pub n_ctx: usize,
    /// Most sequences at a time.
    pub n_seqs: usize,
    /// Most tokens appended in one step.
    pub n_ubatch: usize,
    /// Type of keys.
    pub k_type: DType,
    /// Type of values.
    pub v_type: DType,
}

/// Why the cache refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A sequence would become longer than the context.
    #[error(
        "{needed} tokens do not fit the context of {n_ctx}; shorten the prompt or raise the context size (-c)"
    )]
    Overflow {
        /// Tokens that the sequence would have.
        needed: usize,
        /// The limit.
        n_ctx: usize,
    },
    /// All pages are taken.
    #[error(
        "the cache is full: {needed} more pages needed, {free} free; end a sequence or raise the context size (-c)"
    )]
    Full {
        /// Pages that the step needs.
        needed: usize,
        /// Pages left.
        free: usize,
    },
    /// All sequence slots are taken.
    #[error("all {n_seqs} sequence slots are in use")]
    TooManySequences {
        /// The limit.
        n_seqs: usize,
    },
    /// No such sequence.
    #[error("sequence {seq} does not exist")]
    NoSequence {
        /// The number given.
        seq: usize,
    },
    /// A sequence whose tokens are not neighbours, in a model with ops that work along sequences.
    #[error(
        "the tokens of sequence {seq} are not neighbours in the step; give them one after the other"
    )]
    Scattered {
        /// The sequence.
        seq: usize,
    },
    /// A truncation to before the recurrent state that is kept.
    #[error(
        "cannot go back to {len} tokens: the recurrent state is kept from {kept_from} on; return to a checkpoint or read the tokens again"
    )]
    StateGone {
        /// The length asked for.
        len: usize,
        /// The least length.
        kept_from: usize,
    },
    /// A saved sequence of another model, or of caches of other types.
    #[error(
        "the saved sequence is of another model, context size or cache type; read its tokens again"
    )]
    Layout,
    /// A checkpoint of more tokens than the sequence has.
    #[error("the checkpoint is of {checkpoint} tokens, but the sequence has only {len}")]
    Ahead {
        /// Tokens at the checkpoint.
        checkpoint: usize,
        /// Tokens of the sequence.
        len: usize,
    },
    /// A truncation to a point whose window was already given back.
    #[error(
        "cannot go back to {len} tokens: the sliding window before them was already given back (kept from {kept_from})"
    )]
    WindowGone {
        /// The length asked for.
        len: usize,
        /// First position still cached.
        kept_from: usize,
    },
}

/// Number of a sequence: its row in the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub usize);

/// Layers that share page lists.
#[derive(Debug)]
struct Group {
    window: usize,
    /// i32 `[n_seqs, max_pages]`.
    table: Tensor,
    n_pages: usize,
    free: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    len: usize,
    /// Per group: page of each block of [`PAGE`] positions, `None` once given back.
    pages: Vec<Vec<Option<u32>>>,
}

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct LayerCache {
    /// Index of the group.
    pub group: usize,
    /// `[n_pages, n_kv_heads, PAGE, k_dim]`.
    pub k: Tensor,
    /// `[n_pages, n_kv_heads, PAGE, v_dim]`; `None` where values are the first channels of the keys.
    pub v: Option<Tensor>,
    /// What its indexer has.
    pub index: Option<IndexCache>,
}

impl LayerCache {
    /// What lies in the pages of a sequence.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let index = self.index.iter();
        let keys = index.flat_map(|index| std::iter::once(&index.raw).chain(&index.pooled));
        std::iter::once(&self.k).chain(&self.v).chain(keys)
    }
}

/// What the indexer of one layer caches.
///
/// All raw keys stay, not just those of blocks that may be taken back: 256 bytes a token and layer at 128 channels of
/// f16, a quarter of the attention's own for the shapes in use, buy truncation to any length, pages shared between
/// sequences, and blocks that are pooled again from the same bits. A ring would have to be as deep as any rewind and
/// part of every saved prefix.
#[derive(Clone, Debug)]
pub struct IndexCache {
    /// Sizes.
    pub layer: IndexLayer,
    /// A key a token. `[n_pages, 1, PAGE, dim]`
    pub raw: Tensor,
    /// A key a block, if keys are pooled. `[n_pages, 1, PAGE / ratio, dim]`
    pub pooled: Option<Tensor>,
    /// Where a step puts the blocks that its tokens select; layers that select as many share it. i32 `[rows, 1, n]`
    pub selection: Tensor,
}

impl IndexCache {
    /// The keys that are scored.
    pub fn keys(&self) -> &Tensor {
        self.pooled.as_ref().unwrap_or(&self.raw)
    }
}

/// Where the tokens of a step go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Position of each token in its sequence.
    pub positions: Vec<i32>,
    /// Per group: cell of each token.
    pub slots: Vec<Vec<i32>>,
    /// Per group: new entries of the page table, as (index in the table, page).
    pub table_updates: Vec<Vec<(i32, i32)>>,
    /// Lengths before, to undo the reservation.
    before: Vec<(SeqId, usize)>,
}

/// Caches of all layers and the sequences in them.
#[derive(Debug)]
pub struct KvCache {
    config: CacheConfig,
    groups: Vec<Group>,
    layers: Vec<LayerCache>,
    sequences: Vec<Option<Sequence>>,
}

/// Pages that a group of this window needs.
fn group_pages(window: usize, config: &CacheConfig) -> (usize, usize) {
    let max_pages = config.n_ctx.div_ceil(PAGE);
    let held = if window == 0 {
        max_pages
    } else {
        // The window before a step, the step itself, and a partial page at either end.
        ((window + config.n_ubatch).div_ceil(PAGE) + 2).min(max_pages)
    };
    (held * config.n_seqs, max_pages)
}

/// Pages to copy in each group, (from, to).
pub type PageMoves = Vec<Vec<[i32; 2]>>;

/// Keys and values of one sequence in host memory.
#[derive(Clone, Debug)]
pub struct SavedPages {
    len: usize,
    /// Per group: which blocks of [`PAGE`] positions are there.
    held: Vec<Vec<bool>>,
    bytes: Vec<u8>,
}

impl SavedPages {
    /// Bytes of host memory.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Bytes of one page of a cache, all heads.
fn page_bytes(tensor: &Tensor) -> usize {
    tensor.desc.n_bytes() / tensor.desc.shape[0].max(1)
}

impl KvCache {
    /// What a layer caches as tensors: keys, values, and those of its indexer, raw and pooled.
    fn tensors(layer: &KvLayer, config: &CacheConfig) -> Vec<TensorDesc> {
        let (n_pages, _) = group_pages(layer.window, config);
        let n_heads = layer.n_kv_heads;
        let mut tensors = vec![TensorDesc::pages(
            config.k_type,
            n_pages,
            n_heads,
            layer.k_dim,
        )];
        if !layer.shared_kv {
            tensors.push(TensorDesc::pages(
                config.v_type,
                n_pages,
                n_heads,
                layer.v_dim,
            ));
        }
        if let Some(index) = layer.index {
            let IndexLayer { dim, ratio, .. } = index;
            let dtype = index.key_type(config.k_type);
            tensors.push(TensorDesc::pages(dtype, n_pages, 1, dim));
            if ratio > 1 {
                tensors.push(TensorDesc::block_pages(dtype, n_pages, 1, ratio, dim));
            }
        }
        tensors
    }

    /// Bytes of the largest of a layer's tensors: each is one binding.
    pub fn largest_tensor(layer: &KvLayer, config: &CacheConfig) -> u64 {
        let tensors = Self::tensors(layer, config).into_iter();
        tensors.map(|desc| desc.n_bytes() as u64).max().unwrap_or(0)
    }

    /// Bytes that the caches of these layers take.
    pub fn n_bytes(layers: &[KvLayer], config: &CacheConfig) -> u64 {
        let tensors = layers.iter().flat_map(|layer| Self::tensors(layer, config));
        tensors.map(|desc| desc.n_bytes() as u64).sum()
    }

    /// Allocates the caches.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(
        layers: &[KvLayer],
        config: CacheConfig,
        device: &dyn Device,
    ) -> Result<Self, DeviceError> {
        let alloc = |desc: TensorDesc, label: &str| -> Result<Tensor, DeviceError> {
            let buffer = device.alloc(desc.n_bytes() as u64, label)?;
            Ok(Tensor {
                desc,
                buffers: vec![buffer],
            })
        };
        let mut groups: Vec<Group> = Vec::new();
        let mut caches: Vec<LayerCache> = Vec::new();
        for layer in layers {
            let (n_pages, max_pages) = group_pages(layer.window, &config);
            let known = groups.iter().position(|group| group.window == layer.window);
            let group = if let Some(group) = known {
                group
            } else {
                groups.push(Group {
                    window: layer.window,
                    table: alloc(TensorDesc::i32([config.n_seqs, max_pages]), "page table")?,
                    n_pages,
                    // Popped from the end: page 0 first.
                    free: (0..n_pages as u32).rev().collect(),
                });
                groups.len() - 1
            };
            let mut descs = Self::tensors(layer, &config).into_iter();
            let mut next = |label: &str| descs.next().map(|desc| alloc(desc, label)).transpose();
            let k = next("key cache")?;
            let v = if layer.shared_kv {
                None
            } else {
                next("value cache")?
            };
            let (raw, pooled) = (next("index key cache")?, next("pooled key cache")?);
            let index = match (layer.index, raw) {
                (Some(index), Some(raw)) => {
                    // A step has no more rows than the next power of two, padding included.
                    let rows = config.n_ubatch.next_power_of_two();
                    let desc = TensorDesc::i32([rows, 1, index.n_selected()]);
                    let known = caches
                        .iter()
                        .filter_map(|cache| cache.index.as_ref())
                        .find(|known| known.selection.desc == desc)
                        .map(|known| known.selection.clone());
                    Some(IndexCache {
                        layer: index,
                        raw,
                        pooled,
                        selection: match known {
                            Some(selection) => selection,
                            None => alloc(desc, "selection")?,
                        },
                    })
                }
                _ => None,
            };
            if let Some(k) = k {
                caches.push(LayerCache { group, k, v, index });
            }
        }
        Ok(Self {
            config,
            groups,
            layers: caches,
            sequences: vec![None; config.n_seqs],
        })
    }

    /// Sizes and types.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Keys and values of a layer.
    pub fn layer(&self, layer: usize) -> &LayerCache {
        &self.layers[layer]
    }

    /// Number of groups of layers.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// The page table of a group, i32 `[n_seqs, max_pages]`.
    pub fn table(&self, group: usize) -> &Tensor {
        &self.groups[group].table
    }

    /// The window of a group, 0 for none.
    pub fn window(&self, group: usize) -> usize {
        self.groups[group].window
    }

    /// Pages of a group that no sequence holds.
    pub fn free_pages(&self, group: usize) -> usize {
        self.groups[group].free.len()
    }

    /// Most new page-table entries of one group in a step of `n_tokens`.
    pub fn max_table_updates(&self, n_tokens: usize) -> usize {
        n_tokens / PAGE + n_tokens.min(self.config.n_seqs)
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// If all slots are taken.
    pub fn create(&mut self) -> Result<SeqId, CacheError> {
        let slot = self.sequences.iter().position(Option::is_none).ok_or(
            CacheError::TooManySequences {
                n_seqs: self.config.n_seqs,
            },
        )?;
        self.sequences[slot] = Some(Sequence {
            len: 0,
            pages: vec![Vec::new(); self.groups.len()],
        });
        Ok(SeqId(slot))
    }

    fn sequence(&self, seq: SeqId) -> Result<&Sequence, CacheError> {
        self.sequences
            .get(seq.0)
            .and_then(Option::as_ref)
            .ok_or(CacheError::NoSequence { seq: seq.0 })
    }

    /// Tokens of a sequence.
    ///
    /// # Errors
    /// No such sequence.
    pub fn len(&self, seq: SeqId) -> Result<usize, CacheError> {
        Ok(self.sequence(seq)?.len)
    }

    /// Ends a sequence and frees its pages.
    ///
    /// # Errors
    /// No such sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.sequence(seq)?;
        if let Some(sequence) = self.sequences[seq.0].take() {
            for (group, pages) in self.groups.iter_mut().zip(sequence.pages) {
                group.free.extend(pages.into_iter().flatten());
            }
        }
        Ok(())
    }

    /// Shortens a sequence to its first `len` tokens.
    ///
    /// # Errors
    /// No such sequence; a window that was given back is needed again, in which case nothing changes.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), CacheError> {
        let sequence = self.sequence(seq)?;
        if len >= sequence.len {
            return Ok(());
        }
        for (group, pages) in self.groups.iter().zip(&sequence.pages) {
            let first = if group.window == 0 {
                0
            } else {
                (len + 1).saturating_sub(group.window)
            };
            let kept_from = pages.iter().take_while(|page| page.is_none()).count() * PAGE;
            if first < kept_from && len > 0 {
                return Err(CacheError::WindowGone { len, kept_from });
            }
        }
        if let Some(sequence) = &mut self.sequences[seq.0] {
            sequence.len = len;
            for (group, pages) in self.groups.iter_mut().zip(&mut sequence.pages) {
                let tail = pages.split_off(len.div_ceil(PAGE).min(pages.len()));
                group.free.extend(tail.into_iter().flatten());
            }
        }
        Ok(())
    }

    /// Takes cells for one token of each listed sequence; a sequence may occur several times, in token order.
    ///
    /// # Errors
    /// No such sequence, context overflow, no free pages; nothing changes then.
    pub fn reserve(&mut self, tokens: &[SeqId]) -> Result<Reservation, CacheError> {
        let mut counts: Vec<(SeqId, usize)> = Vec::new();
        for &seq in tokens {
            match counts.iter_mut().find(|(known, _)| *known == seq) {
                Some((_, n)) => *n += 1,
                None => counts.push((seq, 1)),
            }
        }
        for &(seq, n) in &counts {
            let needed = self.sequence(seq)?.len + n;
            if needed > self.config.n_ctx {
                return Err(CacheError::Overflow {
                    needed,
                    n_ctx: self.config.n_ctx,
                });
            }
        }
        for &(seq, _) in &counts {
            self.release_window(seq);
        }
        for (g, group) in self.groups.iter().enumerate() {
            let mut needed = 0;
            for &(seq, n) in &counts {
                let sequence = self.sequence(seq)?;
                needed += (sequence.len + n).div_ceil(PAGE) - sequence.pages[g].len();
            }
            if needed > group.free.len() {
                return Err(CacheError::Full {
                    needed,
                    free: group.free.len(),
                });
            }
        }

        let n_groups = self.groups.len();
        let mut reservation = Reservation {
            positions: Vec::with_capacity(tokens.len()),
            slots: vec![Vec::with_capacity(tokens.len()); n_groups],
            table_updates: vec![Vec::new(); n_groups],
            before: counts
                .iter()
                .map(|&(seq, _)| Ok((seq, self.sequence(seq)?.len)))
                .collect::<Result<_, CacheError>>()?,
        };
        for &seq in tokens {
            let Some(sequence) = &mut self.sequences[seq.0] else {
                return Err(CacheError::NoSequence { seq: seq.0 });
            };
            let position = sequence.len;
            for (g, group) in self.groups.iter_mut().enumerate() {
                let pages = &mut sequence.pages[g];
                if position / PAGE == pages.len() {
                    let page = group
                        .free
                        .pop()
                        .ok_or(CacheError::Full { needed: 1, free: 0 })?;
                    let max_pages = group.table.desc.last();
                    reservation.table_updates[g]
                        .push(((seq.0 * max_pages + pages.len()) as i32, page as i32));
                    pages.push(Some(page));
                }
                let page = pages[position / PAGE].unwrap_or_default() as usize;
                reservation.slots[g].push((page * PAGE + position % PAGE) as i32);
            }
            reservation.positions.push(position as i32);
            sequence.len += 1;
        }
        Ok(reservation)
    }

    /// Undoes a reservation whose step did not run.
    pub fn cancel(&mut self, reservation: &Reservation) {
        for &(seq, len) in &reservation.before {
            // The window before the step is still there, so this cannot fail.
            let _ = self.truncate(seq, len);
        }
    }

    /// Gives back the pages that no token from the end of the sequence on can see.
    fn release_window(&mut self, seq: SeqId) {
        let Some(Some(sequence)) = self.sequences.get_mut(seq.0) else {
            return;
        };
        for (group, pages) in self.groups.iter_mut().zip(&mut sequence.pages) {
            if group.window == 0 {
                continue;
            }
            // Position c is invisible to the next token once len - c >= window.
            let invisible = (sequence.len + 1).saturating_sub(group.window);
            for page in pages.iter_mut().take(invisible / PAGE) {
                group.free.extend(page.take());
            }
        }
    }

    /// Begins a sequence with as many pages as another has. Returns it with the pages of each group, (from, to).
    ///
    /// # Errors
    /// No such sequence; all slots or pages are taken. Nothing changes then.
    pub fn fork(&mut self, seq: SeqId) -> Result<(SeqId, PageMoves), CacheError> {
        let origin = self.sequence(seq)?.clone();
        for (group, pages) in self.groups.iter().zip(&origin.pages) {
            let (needed, free) = (pages.iter().flatten().count(), group.free.len());
            if needed > free {
                return Err(CacheError::Full { needed, free });
            }
        }
        let new = self.create()?;
        let mut moves = Vec::new();
        let mut pages = Vec::new();
        for (group, from) in self.groups.iter_mut().zip(&origin.pages) {
            let to: Vec<Option<u32>> = from
                .iter()
                .map(|page| page.and_then(|_| group.free.pop()))
                .collect();
            let pairs = from.iter().zip(&to).filter_map(|(from, to)| from.zip(*to));
            moves.push(
                pairs
                    .map(|(from, to)| [from.cast_signed(), to.cast_signed()])
                    .collect(),
            );
            pages.push(to);
        }
        let len = origin.len;
        self.sequences[new.0] = Some(Sequence { len, pages });
        Ok((new, moves))
    }

    /// Pages that a sequence holds in a group, those given back as 0: nothing looks there.
    ///
    /// # Errors
    /// No such sequence.
    pub fn page_row(&self, seq: SeqId, group: usize) -> Result<Vec<u32>, CacheError> {
        let pages = &self.sequence(seq)?.pages[group];
        Ok(pages.iter().map(|page| page.unwrap_or_default()).collect())
    }

    /// Keys and values of every layer, and the keys of its indexer, with its group.
    pub fn tensors_by_group(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| layer.tensors().map(|tensor| (layer.group, tensor)))
    }

    /// Copies the keys and values of a sequence to the host.
    ///
    /// # Errors
    /// No such sequence; device lost.
    pub fn save(&self, seq: SeqId, device: &dyn Device) -> Result<SavedPages, MemoryError> {
        let sequence = self.sequence(seq)?;
        let mut bytes = Vec::new();
        for (page, tensor) in self.pages_of(sequence) {
            let n_bytes = page_bytes(tensor);
            let at = bytes.len();
            bytes.resize(at + n_bytes, 0);
            device.read(
                &tensor.buffers[0],
                u64::from(page) * n_bytes as u64,
                &mut bytes[at..],
            )?;
        }
        let held = |pages: &Vec<Option<u32>>| pages.iter().map(Option::is_some).collect();
        Ok(SavedPages {
            len: sequence.len,
            held: sequence.pages.iter().map(held).collect(),
            bytes,
        })
    }

    /// Makes a sequence of what [`save`](Self::save) copied from a cache of the same layout.
    ///
    /// # Errors
    /// All slots or pages are taken, or a cache of another layout, in which case nothing changes; device lost.
    pub fn restore(
        &mut self,
        saved: &SavedPages,
        device: &dyn Device,
    ) -> Result<SeqId, MemoryError> {
        let same_groups = saved.held.len() == self.groups.len();
        let layers_of = |group: usize| self.layers.iter().filter(move |layer| layer.group == group);
        let needed_bytes: usize = (saved.held.iter().enumerate())
            .flat_map(|(group, held)| {
                let pages = held.iter().filter(|&&held| held).count();
                layers_of(group)
                    .flat_map(LayerCache::tensors)
                    .map(move |tensor| pages * page_bytes(tensor))
            })
            .sum();
        if !same_groups || needed_bytes != saved.bytes.len() || saved.len > self.config.n_ctx {
            return Err(CacheError::Layout.into());
        }
        for (group, held) in self.groups.iter().zip(&saved.held) {
            let needed = held.iter().filter(|&&held| held).count();
            if needed > group.free.len() {
                let free = group.free.len();
                return Err(CacheError::Full { needed, free }.into());
            }
        }
        let seq = self.create()?;
        let mut sequence = Sequence {
            len: saved.len,
            pages: Vec::new(),
        };
        for (group, held) in self.groups.iter_mut().zip(&saved.held) {
            let pages: Vec<Option<u32>> = held
                .iter()
                .map(|&held| held.then(|| group.free.pop()).flatten())
                .collect();
            // The row of the table, pages that were given back as page 0: nothing looks there.
            let row: Vec<u32> = pages.iter().map(|page| page.unwrap_or_default()).collect();
            let at = seq.0 * group.table.desc.last() * 4;
            device.write(
                &group.table.buffers[0],
                at as u64,
                bytemuck::cast_slice(&row),
            )?;
            sequence.pages.push(pages);
        }
        let mut rest = saved.bytes.as_slice();
        for (page, tensor) in self.pages_of(&sequence) {
            let n_bytes = page_bytes(tensor);
            let (bytes, after) = rest.split_at(n_bytes);
            device.write(&tensor.buffers[0], u64::from(page) * n_bytes as u64, bytes)?;
            rest = after;
        }
        self.sequences[seq.0] = Some(sequence);
        Ok(seq)
    }

    /// Every page that a sequence holds in every tensor of its group.
    fn pages_of<'a>(
        &'a self,
        sequence: &'a Sequence,
    ) -> impl Iterator<Item = (u32, &'a Tensor)> + 'a {
        self.layers.iter().flat_map(move |layer| {
            let pages = sequence.pages[layer.group].iter().flatten();
            pages.flat_map(move |&page| layer.tensors().map(move |tensor| (page, tensor)))
        })
    }

    /// Total pages of a group.
    pub fn n_pages(&self, group: usize) -> usize {
        self.groups[group].n_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::reference::ReferenceDevice;

    fn cache(window: usize, n_ctx: usize, n_seqs: usize) -> KvCache {
        let layer = |window| KvLayer {
            n_kv_heads: 1,
            k_dim: 32,
            v_dim: 32,
            shared_kv: false,
            window,
            index: None,
        };
        let config = CacheConfig {
            n_ctx,
            n_seqs,
            n_ubatch: 64,
            k_type: DType::F16,
            v_type: DType::Q8_0,
        };
        KvCache::new(&[layer(0), layer(window)], config, &ReferenceDevice::new()).unwrap()
    }

    #[test]
    fn two_sequences_interleave_and_overflow_changes_nothing() {
        let mut cache = cache(0, 128, 2);
        let (a, b) = (cache.create().unwrap(), cache.create().unwrap());
        let step = cache.reserve(&[a, b, a]).unwrap();
        assert_eq!(step.positions, [0, 0, 1], "positions within each sequence");
        assert_eq!(step.slots[0], [0, 64, 1], "a page each");
        assert_eq!(
            step.table_updates[0],
            [(0, 0), (2, 1)],
            "row 0 page 0, row 1 page 1"
        );
        let error = cache.reserve(&[a; 127]).unwrap_err();
        assert_eq!(
            error,
            CacheError::Overflow {
                needed: 129,
                n_ctx: 128
            },
            "both numbers"
        );
        assert_eq!(cache.len(a).unwrap(), 2, "unchanged");
        assert!(cache.create().is_err(), "both slots taken");
    }

    #[test]
    fn a_latent_layer_caches_one_row_and_keys_of_16_bits_at_least() {
        let layer = |shared_kv| KvLayer {
            n_kv_heads: 1,
            k_dim: 576,
            v_dim: 512,
            shared_kv,
            window: 0,
            index: Some(IndexLayer {
                dim: 128,
                ratio: 1,
                budget: 2048,
                dtype: DType::F16,
            }),
        };
        let config = |k_type| CacheConfig {
            n_ctx: 1024,
            n_seqs: 1,
            n_ubatch: 64,
            k_type,
            v_type: DType::F16,
        };
        for (k_type, row, key) in [
            (DType::F32, 4 * 576, 4 * 128),
            (DType::F16, 2 * 576, 2 * 128),
            (DType::Q8_0, 576 / 32 * 34, 2 * 128),
        ] {
            let bytes = |shared| KvCache::n_bytes(&[layer(shared)], &config(k_type));
            assert_eq!(bytes(true), 1024 * (row + key), "{k_type}");
            assert_eq!(bytes(false) - bytes(true), 1024 * 2 * 512, "{k_type}");
        }
        let cache = KvCache::new(&[layer(true)], config(DType::Q8_0), &ReferenceDevice::new());
        let cache = cache.unwrap();
        assert!(cache.layer(0).v.is_none(), "no second copy");
        assert_eq!(cache.tensors_by_group().count(), 2, "rows and keys");
    }

    #[test]
    fn a_window_gives_its_pages_back() {
        let mut cache = cache(70, 4096, 1);
        let seq = cache.create().unwrap();
        let held = cache.n_pages(1);
        assert!(held < 4096 / PAGE, "the window group is small: {held}");
        for _ in 0..4096 / 64 {
            cache.reserve(&[seq; 64]).unwrap();
        }
        assert_eq!(cache.free_pages(0), 0, "the full group holds everything");
        assert!(cache.reserve(&[seq]).is_err(), "context is full");
        assert!(
            matches!(cache.truncate(seq, 100), Err(CacheError::WindowGone { .. })),
            "too far back"
        );
        cache.truncate(seq, 4096 - 64).unwrap();
        assert_eq!(cache.len(seq).unwrap(), 4032, "the last step can be undone");
        cache.truncate(seq, 0).unwrap();
        assert_eq!(cache.free_pages(1), held, "all back");
    }

    #[test]
    fn cancel_restores_lengths_and_pages() {
        let mut cache = cache(0, 256, 1);
        let seq = cache.create().unwrap();
        cache.reserve(&[seq; 60]).unwrap();
        let free = cache.free_pages(0);
        let step = cache.reserve(&[seq; 50]).unwrap();
        cache.cancel(&step);
        assert_eq!(
            (cache.len(seq).unwrap(), cache.free_pages(0)),
            (60, free),
            "as before"
        );
        assert!(
            cache.max_table_updates(50) >= step.table_updates[0].len(),
            "within the bound"
        );
    }
}
