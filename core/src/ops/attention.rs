//! `attention`: each query attends to the visible cells of its own sequence in a paged cache.
//!
//! `o[t, h] = sum_j p_j v_j`, `p = softmax_j(cap(scale * q[t, h] . k_j))`, `cap(s) = softcap * tanh(s / softcap)`
//!
//! # Shapes
//! `q`: f32 `[n_tokens, n_heads, dk]`, the last axis contiguous;
//! `k`, `v`: pages `[n_pages, n_kv_heads, PAGE, dk]` and `[.., dv]`, each of any cache type;
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
//! Caches are decoded to f32; products, scores, running maximum and sums are f32. The bits of a row depend on neither
//! the other rows of the step nor, up to [`SPLIT_TOKENS`] tokens, on their number.
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
}

impl Attention {
    /// The one name.
    pub const NAME: &str = "attention";

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
        write!(f, ", max_len={}]", self.max_len)
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
        let [q, k, v, page_table, seq_rows, positions] = take(Self::NAME, inputs)?;
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
        expect_type(Self::NAME, "page_table", page_table, DType::I32)?;
        if page_table.rank() != 2 || !page_table.is_contiguous() {
            let expected = "contiguous [n_seq_rows, max_pages]";
            return Err(bad_operand(Self::NAME, "page_table", expected, page_table));
        }
        expect_indices(Self::NAME, "seq_rows", seq_rows, q.shape[0])?;
        expect_indices(Self::NAME, "positions", positions, q.shape[0])?;
        Ok(vec![TensorDesc::f32([q.shape[0], q.shape[1], v.last()])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [q, k, v, page_table, seq_rows, positions] = take(Self::NAME, operands.inputs)?;
        for (name, desc) in [("k", k), ("v", v)] {
            let head_dim = desc.last();
            if !head_dim.is_multiple_of(4) || head_dim == 0 || head_dim > MAX_HEAD_DIM {
                let expected =
                    format!("of a head size that is a multiple of 4, 4 to {MAX_HEAD_DIM}");
                return Err(bad_operand(Self::NAME, name, expected, desc));
            }
        }
        let (k_row, v_row) = (page_row(k)?, page_row(v)?);
        let [n_tokens, n_heads, dk] = [q.shape[0], q.shape[1], q.last()];
        let (n_kv_heads, v_quads) = (k.shape[1], v.last() / 4);
        let group = n_heads / n_kv_heads;
        let tiling = Tiling::new(dk, v.last(), caps)?;
        let n_splits = if n_tokens <= SPLIT_TOKENS {
            self.n_splits(n_heads, v_quads, tiling, caps)
        } else {
            1
        };
        let record = v_quads + usize::from(n_splits > 1);
        let n_blocks = (n_tokens * group).div_ceil(TILE) * n_kv_heads * n_splits;
        let n_merged = n_tokens * n_heads * v_quads;

        // Both entries stand in one file, so they share the constants and the parameter block.
        let spec = |threads: usize| {
            Spec::threads(threads as u32)
                .with("CHUNK", tiling.chunk as u32)
                .with("Q_LEN", tiling.q_len as u32)
                .flag("ONE_GROUP", caps.class == DeviceClass::Software)
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
        let mut bindings: Vec<Binding> = (0..6).map(Binding::Input).collect();
        bindings.push(target);
        let mut launches = Launches::one(Launch {
            entry: Self::NAME,
            spec: spec(tiling.threads),
            params: params.clone(),
            grid: fold_grid(n_blocks, caps)?,
            bindings,
        });
        if n_splits > 1 {
            launches.scratch = vec![n_tokens * n_heads * n_splits * record * 16];
            launches.list.push(Launch {
                entry: "attention_merge",
                spec: spec(MERGE_THREADS),
                params,
                grid: fold_grid(n_merged.div_ceil(MERGE_THREADS), caps)?,
                bindings: vec![Binding::Scratch(0), Binding::Output(0)],
            });
        }
        Ok(launches)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let [q, k, v] = [operands.inputs[0], operands.inputs[1], operands.inputs[2]];
        let visible = self.max_visible();
        // Each cache is read once per sequence, not per query head.
        let n_seqs = q.shape[0].min(operands.inputs[3].shape[0]);
        let cell_bytes = 4
            * (CacheRow::new(k.dtype, k.last()).n_words()
                + CacheRow::new(v.dtype, v.last()).n_words());
        let io_bytes = 4 * q.rows() * (k.last() + v.last());
        Cost {
            bytes: (n_seqs * visible * k.shape[1] * cell_bytes + io_bytes) as u64,
            flops: (2 * q.rows() * (k.last() + v.last()) * visible) as u64,
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
    fn n_splits(&self, n_heads: usize, v_quads: usize, tiling: Tiling, caps: &Caps) -> usize {
        // A window that starts inside a chunk touches one chunk more.
        let cells = match self.window {
            0 => self.max_len,
            window => self.max_len.min(window.saturating_add(tiling.chunk)),
        };
        let wanted = match caps.class {
            // Two or so cores: enough to occupy them when there is a single KV head.
            DeviceClass::Software if cells <= 512 => 1,
            DeviceClass::Software => 4,
            _ => cells.div_ceil(tiling.chunk).min(32),
        };
        let record_bytes = (SPLIT_TOKENS * n_heads * (v_quads + 1) * 16).max(1) as u64;
        let most = (caps.max_binding_bytes / record_bytes) as usize;
        wanted.min(most).max(1)
    }
}

/// Rounding of everything but the scores, in units of roundoff, for up to `n_cells` visible cells.
pub(crate) fn tau_units(n_cells: usize) -> f64 {
    8.0 + (n_cells.clamp(1, 4096) as f64).sqrt()
}

/// The library piece that decodes a cache type.
fn cache_lib(dtype: DType) -> String {
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
        // Four floats a channel, a thread and a cell; the row of each cell.
        let mut chunk = 2 * threads;
        while chunk > 32 && 16 * (q_len + threads) + 20 * chunk > shared {
            chunk /= 2;
        }
        Ok(Self {
            threads,
            chunk,
            q_len,
        })
    }
}
