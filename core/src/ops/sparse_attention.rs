//! `sparse_attention`: each query attends to the selected blocks of its own sequence in a paged cache, and to nothing
//! else.
//!
//! `o[t, h] = sum_j p_j v_j` over `j` in `S(t)`, `p = softmax_j(cap(scale * q[t, h] . k_j))`, with `cap` as in
//! [`attention`](super::attention)
//!
//! # Shapes
//! `q`: f32 `[n_tokens, n_heads, dk]`, the last axis contiguous;
//! `k`, `v`: pages `[n_pages, n_kv_heads, PAGE, dk]` and `[.., dv]`, each of any cache type; with
//! [`shared_kv`](SparseAttention::shared_kv) there is no `v`: values are the first channels of the keys;
//! `page_table`: i32 `[n_seq_rows, max_pages]`; `seq_rows`, `positions`: i32 `[n_tokens]`;
//! `selection`: i32 `[n_tokens, n_groups, k]`, the last axis contiguous, `n_groups` 1 or `n_kv_heads`;
//! the output: f32 `[n_tokens, n_heads, dv]`. Query head `h` reads KV head `h / (n_heads / n_kv_heads)`.
//! # Selection
//! Entry `e` names the ordinals `e * ratio .. (e + 1) * ratio` of the token's sequence. `S(t)` is what the entries
//! name, each as often as it is listed, plus with `tail` the ordinals of the block that the token at position `p`
//! leaves incomplete, `ratio * ((p + 1) / ratio) ..= p`; all of it only up to `p`. With `tail` an entry that names the
//! incomplete block adds nothing. Entries of -1, below 0, or of blocks that the token does not see are skipped; their
//! order is free, and the bits of the result follow it.
//! # Cost
//! Cells that are not selected are never read: time and scratch depend on `k * ratio`, never on the length of the
//! sequence or the size of the cache. A block decodes a cell once for up to 16 query heads.
//! # Edge cases
//! Padding tokens (sequence row -1) and tokens that see nothing give zeros. Cells of pages outside the cache are
//! skipped.
//! # Numerics
//! As `attention`: caches decoded to f32, everything else f32. With a selection of all visible cells the result
//! differs from `attention` by the order of sums alone.
//! # Source
//! DeepSeek-V3.2-Exp 2025, section 2.1 (a selection per token shared by all heads); the online softmax as in
//! `attention`.

use std::fmt;

use super::attention::{MAX_HEAD_DIM, SPLIT_TOKENS, cache_lib, tau_units};
use super::kv_write::{expect_indices, expect_pages, page_row};
use super::{expect_f32, expect_type, take};
use crate::PAGE;
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::format::cache_row::CacheRow;
use crate::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance, fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Shared memory that the kernel allows itself, in bytes: enough for 12 query heads of 256 channels, with several
/// blocks on a multiprocessor.
const SHARED_BYTES: usize = 32 * 1024;

/// Threads of the merging launch.
const MERGE_THREADS: usize = 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct SparseAttention {
    /// Factor of the products.
    pub scale: f32,
    /// Bound of the scores; 0: none.
    pub softcap: f32,
    /// Tokens of a block, a power of two up to [`PAGE`].
    pub ratio: usize,
    /// Whether the incomplete last block is attended too.
    pub tail: bool,
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
    selection: &'a TensorDesc,
    /// Channels of a value.
    dv: usize,
}

impl SparseAttention {
    /// The one name.
    pub const NAME: &str = "sparse_attention";

    fn parts<'a>(&self, inputs: &[&'a TensorDesc]) -> Result<Parts<'a>, OpError> {
        let (q, k, v, [page_table, seq_rows, positions, selection], dv) =
            if let Some(dv) = self.shared_kv {
                let [q, k, rest @ ..] = take::<6>(Self::NAME, inputs)?;
                (q, k, k, rest, dv)
            } else {
                let [q, k, v, rest @ ..] = take::<7>(Self::NAME, inputs)?;
                (q, k, v, rest, v.last())
            };
        Ok(Parts {
            q,
            k,
            v,
            page_table,
            seq_rows,
            positions,
            selection,
            dv,
        })
    }

    /// Cells of a token's list: members of the entries, then the tail.
    pub(crate) fn n_listed(&self, n_entries: usize) -> usize {
        n_entries * self.ratio + if self.tail { self.ratio - 1 } else { 0 }
    }
}

impl fmt::Display for SparseAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[scale={}, ratio={}",
            Self::NAME,
            self.scale,
            self.ratio
        )?;
        if self.softcap != 0.0 {
            write!(f, ", softcap={}", self.softcap)?;
        }
        if self.tail {
            f.write_str(", tail")?;
        }
        if let Some(dv) = self.shared_kv {
            write!(f, ", shared_kv={dv}")?;
        }
        f.write_str("]")
    }
}

impl Op for SparseAttention {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let at = self.parts(inputs)?;
        expect_ratio(Self::NAME, self.ratio)?;
        expect_f32(Self::NAME, "q", at.q)?;
        expect_pages(Self::NAME, "k", at.k)?;
        expect_pages(Self::NAME, "v", at.v)?;
        let fits = at.q.rank() == 3
            && at.q.last() == at.k.last()
            && at.k.shape[1] > 0
            && at.q.shape[1].is_multiple_of(at.k.shape[1]);
        if !fits {
            let expected = format!(
                "[n_tokens, a multiple of {}, {}]",
                at.k.shape[1],
                at.k.last()
            );
            return Err(bad_operand(Self::NAME, "q", expected, at.q));
        }
        if at.v.shape[..3] != at.k.shape[..3] {
            let expected = format!("of the pages and heads of k, {:?}", &at.k.shape[..3]);
            return Err(bad_operand(Self::NAME, "v", expected, at.v));
        }
        if at.dv > at.v.last() {
            let expected = format!("of {} channels at least, the values", at.dv);
            return Err(bad_operand(Self::NAME, "k", expected, at.k));
        }
        expect_table(Self::NAME, at.page_table)?;
        expect_indices(Self::NAME, "seq_rows", at.seq_rows, at.q.shape[0])?;
        expect_indices(Self::NAME, "positions", at.positions, at.q.shape[0])?;
        expect_type(Self::NAME, "selection", at.selection, DType::I32)?;
        let fits = at.selection.rank() == 3
            && at.selection.shape[0] == at.q.shape[0]
            && [1, at.k.shape[1]].contains(&at.selection.shape[1])
            && at.selection.last() > 0;
        if !fits {
            let expected = format!("[{}, 1 or {}, at least 1]", at.q.shape[0], at.k.shape[1]);
            return Err(bad_operand(Self::NAME, "selection", expected, at.selection));
        }
        Ok(vec![TensorDesc::f32([at.q.shape[0], at.q.shape[1], at.dv])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let at = self.parts(operands.inputs)?;
        for (name, desc, head_dim) in [("k", at.k, at.k.last()), ("v", at.v, at.dv)] {
            if !head_dim.is_multiple_of(4) || head_dim == 0 || head_dim > MAX_HEAD_DIM {
                let expected =
                    format!("of a head size that is a multiple of 4, 4 to {MAX_HEAD_DIM}");
                return Err(bad_operand(Self::NAME, name, expected, desc));
            }
        }
        let (k_row, v_row) = (page_row(at.k)?, page_row(at.v)?);
        let [n_tokens, n_heads, dk] = [at.q.shape[0], at.q.shape[1], at.q.last()];
        let (n_kv_heads, v_quads) = (at.k.shape[1], at.dv / 4);
        let group = n_heads / n_kv_heads;
        let n_entries = at.selection.last();
        let n_cells = self.n_listed(n_entries);
        let tiling = Tiling::new(group, dk, at.dv, caps)?;
        let n_tiles = group.div_ceil(4 * tiling.heads);
        let n_splits = if n_tokens <= SPLIT_TOKENS {
            n_splits(n_cells, n_heads, v_quads, tiling, caps)
        } else {
            1
        };
        let record = v_quads + usize::from(n_splits > 1);
        let n_blocks = n_tokens * n_kv_heads * n_tiles * n_splits;
        let n_merged = n_tokens * n_heads * v_quads;

        // Both entries stand in one file, so they share the constants and the parameter block.
        let one_group = caps.class == DeviceClass::Software;
        let spec = |threads: usize| {
            Spec::threads(threads as u32)
                .with("CHUNK", tiling.chunk as u32)
                .with("Q_LEN", tiling.q_len as u32)
                .with("SUM_LEN", if one_group { 1 } else { tiling.threads as u32 })
                .flag("ONE_GROUP", one_group)
                .import("h", format!("heads_{}", 4 * tiling.heads))
                .import("k", cache_lib(at.k.dtype))
                .import("v", cache_lib(at.v.dtype))
        };
        let selection_group = if at.selection.shape[1] == 1 {
            0
        } else {
            at.selection.strides[1]
        };
        let params = Params::new()
            .u32("n_blocks", n_blocks)
            .u32("n_merged", n_merged)
            .u32("n_splits", n_splits)
            .u32("n_tiles", n_tiles)
            .u32("n_heads", n_heads)
            .u32("n_kv_heads", n_kv_heads)
            .u32("group", group)
            .u32("dk", dk)
            .u32("v_quads", v_quads)
            .u32("k_words", k_row.n_words())
            .u32("k_narrow", k_row.narrow_words())
            .u32("v_words", v_row.n_words())
            .u32("v_narrow", v_row.narrow_words())
            .u32("n_pages", at.k.shape[0])
            .u32("n_seq_rows", at.page_table.shape[0])
            .u32("max_pages", at.page_table.shape[1])
            .u32("n_entries", n_entries)
            .u32("n_cells", n_cells)
            .u32("ratio", self.ratio)
            .u32("tail", usize::from(self.tail))
            .f32("scale", self.scale)
            .f32("softcap", self.softcap)
            .u32("record", record)
            .u32("q_s0", at.q.strides[0])
            .u32("q_s1", at.q.strides[1])
            .u32("q_off", at.q.offset)
            .u32("table_off", at.page_table.offset)
            .u32("seq_off", at.seq_rows.offset)
            .u32("pos_off", at.positions.offset)
            .u32("sel_s0", at.selection.strides[0])
            .u32("sel_s1", selection_group)
            .u32("sel_off", at.selection.offset);
        let target = if n_splits > 1 {
            Binding::Scratch(0)
        } else {
            Binding::Output(0)
        };
        // Keys that are values too are bound twice: the kernel knows of no difference.
        let inputs = match self.shared_kv {
            Some(_) => [0, 1, 1, 2, 3, 4, 5],
            None => [0, 1, 2, 3, 4, 5, 6],
        };
        let mut bindings: Vec<Binding> = inputs.map(Binding::Input).to_vec();
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
                entry: "sparse_attention_merge",
                spec: spec(MERGE_THREADS),
                params,
                grid: fold_grid(n_merged.div_ceil(MERGE_THREADS), caps)?,
                bindings: vec![Binding::Scratch(0), Binding::Output(0)],
            });
        }
        Ok(launches)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let Ok(at) = self.parts(operands.inputs) else {
            return Cost::default();
        };
        let n_cells = self.n_listed(at.selection.last());
        // The rows of the values, if they are not the keys themselves.
        let v_words = match self.shared_kv {
            Some(_) => 0,
            None => CacheRow::new(at.v.dtype, at.v.last()).n_words(),
        };
        let cell_bytes = 4 * (CacheRow::new(at.k.dtype, at.k.last()).n_words() + v_words);
        let io_bytes = 4 * (at.q.rows() * (at.k.last() + at.dv) + at.selection.n_elems());
        Cost {
            bytes: (at.q.shape[0] * n_cells * at.k.shape[1] * cell_bytes + io_bytes) as u64,
            flops: (2 * at.q.rows() * (at.k.last() + at.dv) * n_cells) as u64,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        let n_cells = match self.parts(operands.inputs) {
            Ok(at) => self.n_listed(at.selection.last()),
            Err(_) => 0,
        };
        Tolerance::units(tau_units(n_cells), n_cells, 1e-10)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::sparse_attention::sparse_attention(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Refuses block sizes that do not tile a page.
pub(crate) fn expect_ratio(op: &'static str, ratio: usize) -> Result<(), OpError> {
    if ratio == 0 || !PAGE.is_multiple_of(ratio) {
        return Err(OpError::Attribute {
            op,
            what: "ratio",
            expected: format!("a divisor of the page of {PAGE} tokens"),
            found: ratio.to_string(),
        });
    }
    Ok(())
}

/// Refuses a page table that is not a contiguous matrix.
pub(crate) fn expect_table(op: &'static str, page_table: &TensorDesc) -> Result<(), OpError> {
    expect_type(op, "page_table", page_table, DType::I32)?;
    if page_table.rank() != 2 || !page_table.is_contiguous() {
        let expected = "contiguous [n_seq_rows, max_pages]";
        return Err(bad_operand(op, "page_table", expected, page_table));
    }
    Ok(())
}

/// Blocks that share the list of a token. Depends on nothing that varies between steps of one model, so that a row's
/// bits do not depend on its company.
fn n_splits(n_cells: usize, n_heads: usize, v_quads: usize, tiling: Tiling, caps: &Caps) -> usize {
    let wanted = match caps.class {
        // Two or so cores: enough to occupy them when there is a single KV head.
        DeviceClass::Software if n_cells <= 512 => 1,
        DeviceClass::Software => 4,
        _ => n_cells.div_ceil(tiling.chunk).min(32),
    };
    let record_bytes = (SPLIT_TOKENS * n_heads * (v_quads + 1) * 16).max(1) as u64;
    let most = (caps.max_binding_bytes / record_bytes) as usize;
    wanted.min(most).max(1)
}

/// How a block cuts its work.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    /// Threads: at least one for each four channels of a value.
    threads: usize,
    /// Fours of query heads that share the cells of a block.
    heads: usize,
    /// Cells between two updates of the running maximum, two a thread at most.
    chunk: usize,
    /// Length of the array of queries, rounded up so that few specialisations exist.
    q_len: usize,
}

impl Tiling {
    fn new(group: usize, dk: usize, dv: usize, caps: &Caps) -> Result<Self, OpError> {
        let least = match caps.class {
            DeviceClass::Software => 32,
            _ => 128.min(caps.max_threads_per_block as usize),
        };
        let threads = (dv / 4).next_power_of_two().max(least);
        if threads > caps.max_threads_per_block as usize {
            return Err(OpError::Limit {
                what: "threads of a block of sparse_attention",
                needed: threads as u64,
                limit: u64::from(caps.max_threads_per_block),
            });
        }
        let q_len = dk.next_multiple_of(64);
        let shared = SHARED_BYTES.min(caps.max_shared_bytes as usize);
        let sums = if caps.class == DeviceClass::Software {
            1
        } else {
            threads
        };
        let bytes = |heads: usize, chunk: usize| {
            // A float a head for each channel, thread and cell; the row of each cell; sums over threads.
            16 * heads * (q_len + threads + 8 + chunk) + 4 * chunk + 16 * sums
        };
        // The fewest products, idle heads included; decoding a cell costs about as much as two heads.
        let heads = (1..=4)
            .filter(|&heads| heads == 1 || bytes(heads, 32) <= shared)
            .min_by_key(|&heads| (group.div_ceil(4 * heads) * (4 * heads + 2), heads))
            .unwrap_or(1);
        let mut chunk = match caps.class {
            DeviceClass::Software => 2 * threads,
            // Short chunks: one token has few of them, and each is a block's.
            _ => threads,
        };
        while chunk > 32 && bytes(heads, chunk) > shared {
            chunk /= 2;
        }
        Ok(Self {
            threads,
            heads,
            chunk,
            q_len,
        })
    }
}
