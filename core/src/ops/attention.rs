//! `attention`: each query attends to the visible cells of its own sequence in a paged cache.
//!
//! `o[t, h] = sum_j p_j v_j`, `p = softmax_j(cap(scale * q[t, h] . k_j))`, `cap(s) = softcap * tanh(s / softcap)`
//!
//! # Shapes
//! `q`: f32 `[n_tokens, n_heads, dk]`, the last axis contiguous;
//! `k`, `v`: pages `[n_pages, n_kv_heads, PAGE, dk]` and `[.., dv]`, each of any cache type; with
//! [`shared_kv`](Attention::shared_kv) there is no `v`: values are the first channels of the keys;
//! `page_table`: i32 `[n_seq_rows, max_pages]`; `seq_rows`, `positions`: i32 `[n_tokens]`;
//! the output: f32 `[n_tokens, n_heads, dv]`. Query head `h` reads KV head `h / (n_heads / n_kv_heads)`.
//! # Visibility
//! Cell `j` of a sequence lies in page `page_table[seq, j / PAGE]` at `j % PAGE`. A token at position `p` sees
//! `j <= p` and, with a window, `p - j < window`. There is no mask: cells outside are never read, so what they hold
//! cannot matter, and the work is proportional to what is visible.
//! # Edge cases
//! Padding tokens (sequence row -1) and tokens that see nothing give zeros. Cells of pages outside the cache are
//! skipped.
//! # Numerics
//! Caches are decoded to f32; products, scores, running maximum and sums are f32, the sums those of chunks of cells and
//! then of chunks. The bits of a row depend on neither the other rows of the step nor, up to [`SPLIT_TOKENS`] tokens, on
//! their number.
//!
//! Tensor cores multiply 16-bit numbers, and the tolerance (about 70 units `u = 2^-24` of the magnitude at 4,096 cells)
//! is far below the `2^-11` of an f16. So whatever is not exact in 16 bits is split into parts that are:
//! - a cache of f16 is exact. Queries and weights become two f16, off by `2^-22 = 4u` of themselves, or by `2^-25` where
//!   that is more. Queries are first scaled by a power of two, to `2^14` at most, weights by `2^14`, so that the second
//!   term is `2^-39` of the largest query or weight: the floor in the reference.
//! - bf16 and the codes of `q8_0`, `q5_0` and `q4_0` are exact in bf16; queries and weights become three bf16, exactly.
//!   Scales stay in f32: they multiply the products of a block of keys, and the weights of a block of values.
//! - f32 is three bf16, exactly, and so are the values of `q5_1` and `q4_1`, whose codes and minima may cancel; of the
//!   nine products the six above `2^-21` are kept.
//!
//! Rounding weights to f16 would cost `2^-12` of the magnitude, a thousand times the tolerance.
//! # Source
//! Vaswani et al. 2017, arXiv:1706.03762, equation 1; the online softmax of Milakov and Gimelshein 2018,
//! arXiv:1805.02867, algorithm 3; merging of parts as in Dao et al. 2023, "Flash-Decoding".

use std::fmt;

use super::kv_write::{expect_indices, expect_pages, page_row};
use super::{expect_f32, expect_type, take};
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::format::cache_row::CacheRow;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Roof, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Most tokens of a step whose cells are split over blocks; larger steps have blocks enough.
pub const SPLIT_TOKENS: usize = 16;

/// Largest head size of the kernels: they keep the queries of a tile in shared memory.
pub const MAX_HEAD_DIM: usize = 576;

/// Query rows of a block: (token, head) pairs that read one KV head, so each key and value is decoded once for four.
const TILE: usize = 4;

/// Shared memory that the kernel allows itself, in bytes.
const SHARED_BYTES: usize = 16 * 1024;

/// Most parts of a token's cells on tensor cores, and threads of the launch that joins them.
const MAX_SPLITS: usize = 128;

/// Most scratch for the results of parts, in bytes.
const MAX_SCRATCH_BYTES: usize = 64 << 20;

/// Threads of the merging launch.
const MERGE_THREADS: usize = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Factor of the products.
    pub scale: f32,
    /// Bound of the scores; 0: none.
    pub softcap: f32,
    /// Cells that a token sees, itself included; 0: all up to itself.
    pub window: usize,
    /// Upper bound of position + 1 in this step's bucket.
    pub max_len: usize,
    /// Values are this many first channels of the keys (latent attention), and there is no operand `v`.
    pub shared_kv: Option<usize>,
}

/// The operands by name; `v` is `k` where the two are one.
struct Parts<'a> {
    q: &'a TensorDesc,
    k: &'a TensorDesc,
    v: &'a TensorDesc,
    page_table: &'a TensorDesc,
    seq_rows: &'a TensorDesc,
    positions: &'a TensorDesc,
    /// Channels of a value.
    dv: usize,
}

impl Attention {
    /// The one name.
    pub const NAME: &str = "attention";

    fn parts<'a>(&self, inputs: &[&'a TensorDesc]) -> Result<Parts<'a>, OpError> {
        let (q, k, v, [page_table, seq_rows, positions], dv) = if let Some(dv) = self.shared_kv {
            let [q, k, rest @ ..] = take::<5>(Self::NAME, inputs)?;
            (q, k, k, rest, dv)
        } else {
            let [q, k, v, rest @ ..] = take::<6>(Self::NAME, inputs)?;
            (q, k, v, rest, v.last())
        };
        Ok(Parts {
            q,
            k,
            v,
            page_table,
            seq_rows,
            positions,
            dv,
        })
    }

    /// Most cells that a token can see.
    fn max_visible(&self) -> usize {
        match self.window {
            0 => self.max_len,
            window => self.max_len.min(window),
        }
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[scale={}", Self::NAME, self.scale)?;
        if self.softcap != 0.0 {
            write!(f, ", softcap={}", self.softcap)?;
        }
        if self.window != 0 {
            write!(f, ", window={}", self.window)?;
        }
        write!(f, ", max_len={}", self.max_len)?;
        if let Some(dv) = self.shared_kv {
            write!(f, ", shared_kv={dv}")?;
        }
        f.write_str("]")
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let Parts {
            q,
            k,
            v,
            page_table,
            seq_rows,
            positions,
            dv,
        } = self.parts(inputs)?;
        expect_f32(Self::NAME, "q", q)?;
        expect_pages(Self::NAME, "k", k)?;
        expect_pages(Self::NAME, "v", v)?;
        let fits = q.rank() == 3
            && q.last() == k.last()
            && k.shape[1] > 0
            && q.shape[1].is_multiple_of(k.shape[1]);
        if !fits {
            let expected = format!("[n_tokens, a multiple of {}, {}]", k.shape[1], k.last());
            return Err(bad_operand(Self::NAME, "q", expected, q));
        }
        if v.shape[..3] != k.shape[..3] {
            let expected = format!("of the pages and heads of k, {:?}", &k.shape[..3]);
            return Err(bad_operand(Self::NAME, "v", expected, v));
        }
        if dv > v.last() {
            let expected = format!("of {dv} channels at least, the values");
            return Err(bad_operand(Self::NAME, "k", expected, k));
        }
        expect_type(Self::NAME, "page_table", page_table, DType::I32)?;
        if page_table.rank() != 2 || !page_table.is_contiguous() {
            let expected = "contiguous [n_seq_rows, max_pages]";
            return Err(bad_operand(Self::NAME, "page_table", expected, page_table));
        }
        expect_indices(Self::NAME, "seq_rows", seq_rows, q.shape[0])?;
        expect_indices(Self::NAME, "positions", positions, q.shape[0])?;
        Ok(vec![TensorDesc::f32([q.shape[0], q.shape[1], dv])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let Parts {
            q,
            k,
            v,
            page_table,
            seq_rows,
            positions,
            dv,
        } = self.parts(operands.inputs)?;
        for (name, desc, head_dim) in [("k", k, k.last()), ("v", v, dv)] {
            if !head_dim.is_multiple_of(4) || head_dim == 0 || head_dim > MAX_HEAD_DIM {
                let expected =
                    format!("of a head size that is a multiple of 4, 4 to {MAX_HEAD_DIM}");
                return Err(bad_operand(Self::NAME, name, expected, desc));
            }
        }
        let (k_row, v_row) = (page_row(k)?, page_row(v)?);
        let [n_tokens, n_heads, dk] = [q.shape[0], q.shape[1], q.last()];
        let (n_kv_heads, v_quads) = (k.shape[1], dv / 4);
        let group = n_heads / n_kv_heads;
        let tiles = TilePlan::new([k, v], dv, n_tokens, group, caps);
        let tiling = match &tiles {
            Some(tiles) => Tiling::of_tiles(tiles),
            None => Tiling::new(dk, dv, caps)?,
        };
        let (tile_rows, cells) = match &tiles {
            Some(tiles) => (16 * tiles.row_tiles, tiles.cells),
            None => (TILE, tiling.chunk),
        };
        let row_blocks = (n_tokens * group).div_ceil(tile_rows) * n_kv_heads;
        let n_splits = match &tiles {
            Some(_) if n_tokens > SPLIT_TOKENS => {
                self.prefill_splits(row_blocks, n_tokens * n_heads, v_quads, cells)
            }
            Some(tiles) => {
                self.decode_splits(n_kv_heads * tiles.per_token, n_heads, v_quads, cells, caps)
            }
            None if n_tokens <= SPLIT_TOKENS => self.n_splits(n_heads, v_quads, cells, caps),
            None => 1,
        };
        let record = v_quads + usize::from(n_splits > 1);
        let n_blocks = row_blocks * n_splits;
        let n_merged = n_tokens * n_heads * v_quads;

        // All entries stand in one file, so they share the constants and the parameter block.
        let spec = |threads: usize, shared_bytes: usize| {
            let tiles = tiles.as_ref().unwrap_or(&TilePlan::NONE);
            Spec::threads(threads as u32)
                .with("CHUNK", tiling.chunk as u32)
                .with("Q_LEN", tiling.q_len as u32)
                .flag("ONE_GROUP", caps.class == DeviceClass::Software)
                .with("ROW_TILES", tiles.row_tiles as u32)
                .with("TEAM", tiles.team as u32)
                .with("V_BLOCKS", tiles.v_blocks as u32)
                .with("CELLS", tiles.cells as u32)
                .with("SHARED_BYTES", shared_bytes as u32)
                .import("k", cache_lib(k.dtype))
                .import("v", cache_lib(v.dtype))
        };
        let params = Params::new()
            .u32("n_blocks", n_blocks)
            .u32("n_merged", n_merged)
            .u32("n_splits", n_splits)
            .u32("n_tokens", n_tokens)
            .u32("n_heads", n_heads)
            .u32("n_kv_heads", n_kv_heads)
            .u32("group", group)
            .u32("dk", dk)
            .u32("v_quads", v_quads)
            .u32("k_words", k_row.n_words())
            .u32("k_narrow", k_row.narrow_words())
            .u32("v_words", v_row.n_words())
            .u32("v_narrow", v_row.narrow_words())
            .u32("n_pages", k.shape[0])
            .u32("n_seq_rows", page_table.shape[0])
            .u32("max_pages", page_table.shape[1])
            .u32("window", self.window.min(i32::MAX as usize))
            .f32("scale", self.scale)
            .f32("softcap", self.softcap)
            .u32("record", record)
            .u32("q_s0", q.strides[0])
            .u32("q_s1", q.strides[1])
            .u32("q_off", q.offset)
            .u32("table_off", page_table.offset)
            .u32("seq_off", seq_rows.offset)
            .u32("pos_off", positions.offset);
        let target = if n_splits > 1 {
            Binding::Scratch(0)
        } else {
            Binding::Output(0)
        };
        // Keys that are values too are bound twice: the kernel knows of no difference.
        let inputs = match self.shared_kv {
            Some(_) => [0, 1, 1, 2, 3, 4],
            None => [0, 1, 2, 3, 4, 5],
        };
        let mut bindings: Vec<Binding> = inputs.map(Binding::Input).to_vec();
        bindings.push(target);
        let mut launches = Launches::one(Launch {
            entry: match &tiles {
                Some(_) => "attention_tiles",
                None => Self::NAME,
            },
            spec: spec(tiling.threads, tiles.as_ref().map_or(0, |t| t.shared_bytes)),
            params: params.clone(),
            grid: fold_grid(n_blocks, caps)?,
            bindings,
        });
        if n_splits > 1 {
            launches.scratch = vec![n_tokens * n_heads * n_splits * record * 16];
            let (entry, threads, n_blocks) = match &tiles {
                Some(_) => ("attention_join", MAX_SPLITS, n_tokens * n_heads),
                None => (
                    "attention_merge",
                    MERGE_THREADS,
                    n_merged.div_ceil(MERGE_THREADS),
                ),
            };
            launches.list.push(Launch {
                entry,
                spec: spec(threads, 0),
                params,
                grid: fold_grid(n_blocks, caps)?,
                bindings: vec![Binding::Scratch(0), Binding::Output(0)],
            });
        }
        Ok(launches)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let Ok(Parts {
            q,
            k,
            v,
            page_table,
            dv,
            ..
        }) = self.parts(operands.inputs)
        else {
            return Cost::default();
        };
        let visible = self.max_visible();
        // Each cache is read once per sequence, not per query head.
        let n_seqs = q.shape[0].min(page_table.shape[0]);
        // The rows of the values, if they are not the keys themselves.
        let v_words = match self.shared_kv {
            Some(_) => 0,
            None => CacheRow::new(v.dtype, v.last()).n_words(),
        };
        let cell_bytes = 4 * (CacheRow::new(k.dtype, k.last()).n_words() + v_words);
        let io_bytes = 4 * q.rows() * (k.last() + dv);
        Cost {
            bytes: (n_seqs * visible * k.shape[1] * cell_bytes + io_bytes) as u64,
            flops: (2 * q.rows() * (k.last() + dv) * visible) as u64,
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        let visible = self.max_visible();
        Tolerance::units(tau_units(visible), visible, 1e-10)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn roof(&self) -> Roof {
        Roof::Matrix
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::attention::attention(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Attention {
    /// Blocks that share the cells of a token. Depends on nothing that varies between steps of one bucket and one
    /// model, so that a row's bits do not depend on its company.
    fn n_splits(&self, n_heads: usize, v_quads: usize, chunk: usize, caps: &Caps) -> usize {
        let cells = self.max_touched(chunk);
        let wanted = match caps.class {
            // Two or so cores: enough to occupy them when there is a single KV head.
            DeviceClass::Software if cells <= 512 => 1,
            DeviceClass::Software => 4,
            _ => cells.div_ceil(chunk).min(32),
        };
        let record_bytes = (SPLIT_TOKENS * n_heads * (v_quads + 1) * 16).max(1) as u64;
        let most = (caps.max_binding_bytes / record_bytes) as usize;
        wanted.min(most).max(1)
    }

    /// Cells of the chunks that a token touches: a window that starts inside a chunk touches one chunk more.
    fn max_touched(&self, chunk: usize) -> usize {
        match self.window {
            0 => self.max_len,
            window => self.max_len.min(window.saturating_add(chunk)),
        }
    }

    /// The same on tensor cores, where a token alone has `n_blocks` blocks.
    fn decode_splits(
        &self,
        n_blocks: usize,
        n_heads: usize,
        v_quads: usize,
        cells: usize,
        caps: &Caps,
    ) -> usize {
        // Some blocks for each of up to 144 multiprocessors, to cover each other's waits.
        let blocks: usize = match caps.class {
            DeviceClass::Discrete => 512,
            _ => 64,
        };
        let wanted = blocks.div_ceil(n_blocks.max(1));
        let record_bytes = (SPLIT_TOKENS * n_heads * (v_quads + 1) * 16).max(1);
        wanted
            .min(self.max_touched(cells).div_ceil(cells))
            .min(MAX_SCRATCH_BYTES / record_bytes)
            .clamp(1, MAX_SPLITS)
    }

    /// Splits of a large step: until every multiprocessor has a block, but four chunks a block at least.
    fn prefill_splits(
        &self,
        n_blocks: usize,
        n_rows: usize,
        v_quads: usize,
        cells: usize,
    ) -> usize {
        let record_bytes = (n_rows * (v_quads + 1) * 16).max(1);
        256_usize
            .div_ceil(n_blocks.max(1))
            .min(self.max_touched(cells).div_ceil(4 * cells))
            .min(MAX_SCRATCH_BYTES / record_bytes)
            .clamp(1, MAX_SPLITS)
    }
}

/// Rounding of everything but the scores, in units of roundoff, for up to `n_cells` visible cells.
pub(crate) fn tau_units(n_cells: usize) -> f64 {
    8.0 + (n_cells.clamp(1, 4096) as f64).sqrt()
}

/// The library piece that decodes a cache type.
pub(crate) fn cache_lib(dtype: DType) -> String {
    format!("cache_{}", dtype.name())
}

/// How a block cuts its work.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    /// Threads: at least one for each four channels of `v`.
    threads: usize,
    /// Cells between two updates of the running maximum, two a thread at most.
    chunk: usize,
    /// Length of the array of queries, rounded up so that few specialisations exist.
    q_len: usize,
}

impl Tiling {
    fn new(dk: usize, dv: usize, caps: &Caps) -> Result<Self, OpError> {
        let least = match caps.class {
            DeviceClass::Software => 32,
            _ => 128.min(caps.max_threads_per_block as usize),
        };
        let threads = (dv / 4).next_power_of_two().max(least);
        if threads > caps.max_threads_per_block as usize {
            return Err(OpError::Limit {
                what: "threads of a block of attention",
                needed: threads as u64,
                limit: u64::from(caps.max_threads_per_block),
            });
        }
        let q_len = dk.next_multiple_of(64);
        let shared = SHARED_BYTES.min(caps.max_shared_bytes as usize);
        let mut tiling = Self {
            threads,
            chunk: 2 * threads,
            q_len,
        };
        while tiling.chunk > 32 && tiling.shared_bytes() > shared {
            tiling.chunk /= 2;
        }
        if tiling.shared_bytes() > shared {
            return Err(OpError::Limit {
                what: "bytes of shared memory of attention",
                needed: tiling.shared_bytes() as u64,
                limit: shared as u64,
            });
        }
        Ok(tiling)
    }

    /// What the entry `attention` declares, the larger of shader and kernel: four floats a channel, a thread, a cell
    /// and a warp (in the shader: eight times); the row of each cell and who sees it.
    fn shared_bytes(&self) -> usize {
        16 * (self.q_len + self.threads + (self.threads / 32).max(8)) + 24 * self.chunk
    }

    /// Threads of tiles; a length that tells the entry `attention`, which stands in the same text, that it is not meant.
    fn of_tiles(tiles: &TilePlan) -> Self {
        Self {
            threads: 32 * tiles.row_tiles * tiles.team,
            chunk: 32,
            q_len: 4,
        }
    }
}

/// How a block of `attention_tiles` cuts its work.
#[derive(Clone, Debug)]
struct TilePlan {
    /// Tiles of 16 query rows.
    row_tiles: usize,
    /// Warps that share a tile.
    team: usize,
    /// Blocks of 32 channels of `v` that a warp owns.
    v_blocks: usize,
    /// Cells of a chunk.
    cells: usize,
    /// Dynamic shared memory.
    shared_bytes: usize,
    /// Blocks that a single token has for each KV head, splits apart.
    per_token: usize,
}

impl TilePlan {
    /// For launches without tiles: what compiles soonest.
    const NONE: Self = Self {
        row_tiles: 1,
        team: 1,
        v_blocks: 1,
        cells: 16,
        shared_bytes: 0,
        per_token: 1,
    };

    /// Warps of a block: more would leave each too few registers.
    const MAX_WARPS: usize = 8;

    /// The plan for these caches, or `None` if the device has no tensor cores or its shared memory is too small.
    ///
    /// Up to [`SPLIT_TOKENS`] tokens nothing depends on their number, so that the order of a row's sums does not.
    fn new(
        [k, v]: [&TensorDesc; 2],
        dv: usize,
        n_tokens: usize,
        group: usize,
        caps: &Caps,
    ) -> Option<Self> {
        if !caps.tensor_cores || caps.class == DeviceClass::Software || caps.warp != Some(32) {
            return None;
        }
        // Arrays of fixed size lie beside it in the emulation.
        let budget = (caps.max_shared_bytes as usize).saturating_sub(8 << 10);
        let decodes = n_tokens <= SPLIT_TOKENS;
        let n_v_blocks = dv.div_ceil(32);
        // A warp holds 16 sums a lane for each of its blocks: two where that is possible. A decoding block has few rows,
        // so its warps share the cells.
        let team = match n_v_blocks {
            _ if decodes => 4,
            0..=2 => 1,
            3..=4 => 2,
            _ => 4,
        };
        let n_rows = if decodes { group } else { group * n_tokens };
        let mut best = None;
        for row_tiles in [1, 2, 4, 8] {
            let warps = row_tiles * team;
            if warps > Self::MAX_WARPS || 16 * row_tiles >= 2 * n_rows.next_multiple_of(16) {
                continue;
            }
            for cells in [16, 32, 64] {
                let mut tiles = Self {
                    row_tiles,
                    team,
                    v_blocks: n_v_blocks.div_ceil(team),
                    cells,
                    shared_bytes: 0,
                    per_token: group.div_ceil(16 * row_tiles),
                };
                tiles.shared_bytes = 16 * tiles.units(k, v);
                if tiles.shared_bytes > budget {
                    continue;
                }
                // Blocks that a multiprocessor holds, by shared memory and by 128 or 168 registers a thread. Eight
                // warps at least; then long chunks, which need few barriers and occupy the whole team; then more
                // warps; then more rows, which read K and V less often.
                let by_registers = if tiles.v_blocks > 2 { 12 } else { 16 } / warps;
                let by_shared = (budget + 1024) / (tiles.shared_bytes + 1024);
                let resident = by_registers.max(1).min(by_shared) * warps;
                let key = (resident.min(8), cells, resident, row_tiles);
                if best.as_ref().is_none_or(|(best, _)| key >= *best) {
                    best = Some((key, tiles));
                }
            }
        }
        best.map(|(_, tiles)| tiles)
    }

    /// Shared memory in units of 16 bytes, as `areas` in the kernel counts it: queries as operands of `mma`, a chunk of
    /// keys and of values, its weights, maxima, tokens.
    fn units(&self, k: &TensorDesc, v: &TensorDesc) -> usize {
        let (k_row, v_row) = (
            CacheRow::new(k.dtype, k.last()),
            CacheRow::new(v.dtype, v.last()),
        );
        let k_blocks = k.last().div_ceil(32);
        let parts = if k.dtype == DType::F16 { 2 } else { 3 };
        let queries = self.row_tiles * k_blocks * 2 * parts * 32;
        let rows = self.cells * (k_row.n_words() + v_row.n_words()) / 4;
        let weights = if self.team > 1 {
            self.row_tiles * self.cells * 4
        } else {
            0
        };
        queries + rows + weights + self.row_tiles * (self.team * 4 + 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::CACHE_TYPES;

    /// A GPU with tensor cores and this much shared memory.
    fn caps(shared_kib: u32) -> Caps {
        Caps {
            class: DeviceClass::Discrete,
            max_threads_per_block: 1024,
            max_shared_bytes: shared_kib << 10,
            max_bindings: 64,
            warp: Some(32),
            tensor_cores: true,
            ..crate::device::reference_caps()
        }
    }

    fn launches(
        types: [DType; 2],
        [dk, dv]: [usize; 2],
        [group, n_tokens]: [usize; 2],
        max_len: usize,
        caps: &Caps,
    ) -> Launches {
        let op = Attention {
            scale: 1.0,
            softcap: 0.0,
            window: 0,
            max_len,
            shared_kv: None,
        };
        let inputs = [
            TensorDesc::f32([n_tokens, 2 * group, dk]),
            TensorDesc::pages(types[0], 3, 2, dk),
            TensorDesc::pages(types[1], 3, 2, dv),
            TensorDesc::i32([1, 3]),
            TensorDesc::i32([n_tokens]),
            TensorDesc::i32([n_tokens]),
        ];
        let inputs: Vec<&TensorDesc> = inputs.iter().collect();
        let outputs = op.outputs(&inputs, &[]).unwrap();
        let operands = Operands {
            inputs: &inputs,
            inouts: &[],
            outputs: &[&outputs[0]],
        };
        op.launches(operands, caps).unwrap()
    }

    fn constant(launch: &Launch, wanted: &str) -> u32 {
        let found = launch.spec.consts.iter().find(|(name, _)| *name == wanted);
        match found {
            Some((_, crate::op::Const::U32(value))) => *value,
            _ => panic!("no number {wanted}"),
        }
    }

    #[test]
    fn the_portable_entry_fits_its_shared_memory() {
        for class in [DeviceClass::Software, DeviceClass::Discrete] {
            let caps = Caps {
                class,
                tensor_cores: false,
                ..caps(16)
            };
            for dk in (4..=MAX_HEAD_DIM).step_by(4) {
                for dv in [4, 64, 80, 128, 256, 512, MAX_HEAD_DIM] {
                    let tiling = Tiling::new(dk, dv, &caps).unwrap();
                    assert!(tiling.shared_bytes() <= 16 << 10, "{dk} {dv}: {tiling:?}");
                    assert!(
                        4 * tiling.threads >= dv,
                        "a thread for each quad: {tiling:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn tiles_fit_shared_memory_or_leave_the_op_to_the_portable_entry() {
        for shared_kib in [48, 64, 99, 163, 227] {
            for &k in CACHE_TYPES {
                for [dk, dv] in [
                    [40, 40],
                    [64, 64],
                    [128, 128],
                    [192, 128],
                    [256, 256],
                    [576, 512],
                ] {
                    for [group, n_tokens] in [[1, 1], [128, 1], [4, 16], [4, 17], [6, 512]] {
                        let caps = caps(shared_kib);
                        let made =
                            launches([k, DType::F16], [dk, dv], [group, n_tokens], 4096, &caps);
                        let first = &made.list[0];
                        let bytes = constant(first, "SHARED_BYTES");
                        assert!(bytes <= shared_kib << 10, "{bytes} of {shared_kib} KiB");
                        let threads = constant(first, "THREADS");
                        assert!((32..=256).contains(&threads), "{threads} threads");
                        if shared_kib >= 99 && k != DType::F32 {
                            assert_eq!(first.entry, "attention_tiles", "{k} {dk} {dv}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_of_sums_does_not_depend_on_the_number_of_decoded_tokens() {
        for group in [1, 4, 12, 128] {
            let of = |n_tokens| {
                let made = launches(
                    [DType::F16; 2],
                    [128; 2],
                    [group, n_tokens],
                    1 << 17,
                    &caps(99),
                );
                let splits = made.list[0]
                    .params
                    .fields()
                    .iter()
                    .find(|(name, _)| name == "n_splits");
                (
                    constant(&made.list[0], "CELLS"),
                    constant(&made.list[0], "TEAM"),
                    splits.map(|(_, value)| value.bits()),
                )
            };
            for n_tokens in 2..=SPLIT_TOKENS {
                assert_eq!(
                    of(n_tokens),
                    of(1),
                    "{n_tokens} tokens, {group} heads a group"
                );
            }
        }
    }
}
