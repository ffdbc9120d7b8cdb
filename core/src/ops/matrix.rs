//! Geometry of the matrix products on tensor cores: `kernels/matmul.cu` and `kernels/matmul_q8.cu`.
//!
//! Fragments are 16 rows of the weight by 8 tokens, columns go by runs of 32.
//!
//! # Regimes
//! For `T` tokens and `O` rows of `I` columns:
//!
//! | tokens | kernel | bytes beside the weights | arithmetic per weight |
//! |---|---|---|---|
//! | 1 ..= 16 | few: warps divide the runs, weights go to registers once | `4 T I` for every `16 * tiles` rows, cached | 8 or 16 tokens |
//! | 17 .. | many: blocks of rows by tokens through shared memory | `4 T I` a row block, `4 T O` a split, cached | 16, 32, 64 or (factors in bf16) 128 tokens a tile |
//!
//! Time is the weights' bytes until the tensor cores or the cache become the limit, so it steps only where a tile is
//! added: from 8 to 9 tokens, 16 to 17 (a second launch makes the parts of the activations: `4 T I` bytes out and in),
//! 32 to 33, and by whole blocks of 64 tokens from there on. The work of the step is at most that of twice the tokens in
//! a regime bound by bytes, which do not change.

use super::matmul::FEW_TOKENS;
use crate::dtype::DType;
use crate::error::OpError;
use crate::format::tile8::Tile8;
use crate::op::{Caps, DeviceClass, Params, Spec};

/// Columns of a run.
pub(crate) const RUN: usize = 32;

/// Rows and tokens of a fragment.
const ROWS: usize = 16;
const TOKENS: usize = 8;

/// What the activations of a step take in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Runs of a step.
    pub(crate) step: usize,
    /// Bytes of a column.
    pub(crate) column_bytes: usize,
    /// 32-bit figures of a run of a token.
    pub(crate) figures: usize,
    /// Most tokens of a block, whose sums a warp keeps in registers.
    pub(crate) tokens: usize,
    /// Whether weights are one number each: more, for two fragments, would not stay in registers.
    pub(crate) one_part: bool,
}

/// What each block and warp computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Warps of a block: they divide the columns of few tokens, the rows of many.
    pub(crate) warps: usize,
    /// Fragments of 16 rows of a warp.
    pub(crate) tiles: usize,
    /// Tokens of a block.
    pub(crate) tokens: usize,
    /// Blocks that divide the columns of a sum.
    pub(crate) splits: usize,
    /// Runs of each of them.
    pub(crate) split_runs: usize,
    /// Runs of a step of a block of many tokens.
    pub(crate) step: usize,
    /// Steps that copies to shared memory are ahead.
    pub(crate) ahead: usize,
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: usize,
}

/// Blocks that fill a device of this class.
fn full(class: DeviceClass) -> usize {
    match class {
        DeviceClass::Discrete => 256,
        DeviceClass::Integrated => 32,
        DeviceClass::Reference | DeviceClass::Software => 4,
    }
}

impl Matrix {
    /// For up to [`FEW_TOKENS`] tokens, with `chains` partial sums of each output in a lane. What orders a sum, the
    /// warps, does not depend on the tokens.
    pub(crate) fn few(
        n_tokens: usize,
        (d_out, d_in): (usize, usize),
        chains: usize,
        caps: &Caps,
    ) -> Self {
        let n_runs = d_in.div_ceil(RUN);
        let n_fragments = d_out.div_ceil(ROWS);
        let full = full(caps.class);
        // Groups of four runs go round; few rows with long sums want more warps.
        let wanted = if n_fragments < 2 * full && n_runs >= 64 {
            16
        } else {
            8
        };
        let warps = wanted
            .min(n_runs.div_ceil(4))
            .min(caps.max_threads_per_block as usize / 32)
            .max(1);
        let tokens = n_tokens.next_multiple_of(TOKENS).clamp(TOKENS, FEW_TOKENS);
        // Fragments of a warp share its activations, but their sums take registers; those of all warps lie in static
        // shared memory.
        let registers = |tiles: usize| tiles * (tokens / TOKENS) * 4 * chains;
        let shared = |tiles: usize| warps * tiles * ROWS * tokens * 4;
        let limit = (caps.max_shared_bytes as usize).min(40 << 10);
        let tiles = [4, 2]
            .into_iter()
            .filter(|&tiles| registers(tiles) <= 64 && shared(tiles) <= limit)
            .find(|&tiles| n_fragments >= tiles * 2 * full)
            .unwrap_or(1);
        Self {
            warps,
            tiles,
            tokens,
            splits: 1,
            split_runs: n_runs,
            step: 1,
            ahead: 1,
            shared_bytes: 0,
        }
    }

    /// For more than [`FEW_TOKENS`] tokens.
    ///
    /// # Errors
    /// If not even the smallest block has the shared memory that it needs.
    pub(crate) fn many(
        n_tokens: usize,
        (dtype, d_out, d_in): (DType, usize, usize),
        operand: Operand,
        caps: &Caps,
    ) -> Result<Self, OpError> {
        let n_runs = d_in.div_ceil(RUN);
        let chunk_runs = chunk_runs(dtype, operand.step);
        let tile = Tile8::new(dtype, 8, chunk_runs * RUN);
        let most_tokens = n_tokens.next_power_of_two().clamp(32, operand.tokens);
        let shared = |(warps, tiles, ahead, tokens): (usize, usize, usize, usize)| {
            let run = RUN * operand.column_bytes + 4 * operand.figures;
            let stages = (ahead + 1) * operand.step * tokens * run;
            let chunks_ahead = (ahead * operand.step).div_ceil(chunk_runs);
            let chunk = warps * tiles * (ROWS / 8) * tile.group_bytes();
            stages + (chunks_ahead + 1) * chunk
        };
        let rows = [(4, 2), (4, 1), (2, 1), (1, 1)]
            .into_iter()
            .filter(|&(warps, _)| warps * 32 <= caps.max_threads_per_block as usize)
            .filter(|&(_, tiles)| tiles == 1 || operand.one_part)
            // No block of mostly padding.
            .filter(|&(warps, tiles)| {
                warps * tiles == 1 || warps * tiles * ROWS < 2 * d_out.max(ROWS)
            });
        let fits = |tokens: &[usize], limit: usize| {
            rows.clone()
                .flat_map(|(warps, tiles)| [3, 2, 1].map(|ahead| (warps, tiles, ahead)))
                .flat_map(|(warps, tiles, ahead)| {
                    tokens.iter().map(move |&n| (warps, tiles, ahead, n))
                })
                .find(|&block| shared(block) <= limit)
        };
        // Two blocks of a multiprocessor hide each other's waits, if that costs no token of a tile.
        let most = caps.max_shared_bytes as usize;
        let block = fits(&[most_tokens], most / 2)
            .or_else(|| fits(&[most_tokens], most))
            .or_else(|| fits(&[most_tokens.min(64)], most))
            .or_else(|| fits(&[32, 16, TOKENS], most))
            .ok_or(OpError::Limit {
                what: "shared memory of a block",
                needed: shared((1, 1, 1, TOKENS)) as u64,
                limit: most as u64,
            })?;
        let (warps, tiles, ahead, tokens) = block;
        let blocks = d_out.div_ceil(warps * tiles * ROWS) * n_tokens.div_ceil(tokens);
        // A split has at least 512 columns and whole chunks.
        let wanted = (full(caps.class) / blocks.max(1)).clamp(1, 8);
        let splits = wanted.min(n_runs / 16).max(1);
        let split_runs = n_runs.div_ceil(splits).next_multiple_of(chunk_runs);
        Ok(Self {
            warps,
            tiles,
            tokens,
            splits: n_runs.div_ceil(split_runs.max(1)).max(1),
            split_runs,
            step: operand.step,
            ahead,
            shared_bytes: shared(block),
        })
    }

    /// Rows of a block.
    pub(crate) fn rows(&self, few: bool) -> usize {
        ROWS * self.tiles * if few { 1 } else { self.warps }
    }

    /// What the parameter blocks of all entries end with.
    pub(crate) fn params(&self, token_stride: usize) -> Params {
        Params::new()
            .u32("token_stride", token_stride)
            .u32("n_splits", self.splits)
            .u32("split_runs", self.split_runs)
    }

    /// The specialisation without its pieces.
    pub(crate) fn spec(&self, few: bool) -> Spec {
        let spec = Spec::threads(32 * self.warps as u32)
            .flag("FEW", few)
            .with("TILES", self.tiles as u32)
            .with("TOKENS", self.tokens as u32)
            .with("STEP", self.step as u32)
            .with("AHEAD", self.ahead as u32);
        if self.shared_bytes > 0 {
            spec.with("SHARED_BYTES", self.shared_bytes as u32)
        } else {
            spec
        }
    }
}

/// Runs of a chunk of weights in shared memory: tiles of the layout that make up a step.
fn chunk_runs(dtype: DType, step: usize) -> usize {
    dtype.block_elems().div_ceil(RUN).max(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::WEIGHT_TYPES;

    fn caps(max_shared_bytes: u32) -> Caps {
        Caps {
            class: DeviceClass::Discrete,
            max_shared_bytes,
            max_threads_per_block: 1024,
            tensor_cores: true,
            ..crate::device::reference_caps()
        }
    }

    #[test]
    fn blocks_fit_the_shared_memory_of_every_device() {
        for shared in [16 << 10, 64 << 10, 99 << 10, 227 << 10] {
            for &dtype in WEIGHT_TYPES {
                let wide = matches!(dtype, DType::F32 | DType::BF16);
                let mut operands = vec![(1, if wide { 6 } else { 4 }, 3), (2, 2, 0)];
                if crate::ops::matmul_q8::TYPES.contains(&dtype) {
                    operands.push((4, 1, 2));
                }
                for (step, column_bytes, figures) in operands {
                    let once = column_bytes == 2;
                    let tokens = if once && shared >= 200 << 10 { 128 } else { 64 };
                    let operand = Operand {
                        step,
                        column_bytes,
                        figures,
                        tokens,
                        one_part: once || dtype != DType::F32,
                    };
                    let many = Matrix::many(129, (dtype, 4096, 4096), operand, &caps(shared))
                        .unwrap_or_else(|error| panic!("{dtype}, {shared} bytes: {error}"));
                    assert!(many.shared_bytes <= shared as usize, "{dtype}: {many:?}");
                    assert!(
                        shared < 99 << 10 || (many.warps, many.tokens) == (4, tokens),
                        "{dtype}, {shared} bytes: {many:?}"
                    );
                    let large = (many.tiles == 2 || (wide && !once))
                        && many.ahead >= if once && dtype == DType::F32 { 1 } else { 2 };
                    assert!(shared < 227 << 10 || large, "{dtype}: {many:?}");
                }
                let few = Matrix::few(16, (262_144, 4096), 1, &caps(shared));
                assert!(
                    few.warps * few.tiles * ROWS * few.tokens * 4 <= shared as usize,
                    "{dtype}: {few:?}"
                );
            }
        }
    }

    #[test]
    fn splits_cover_all_runs_in_whole_chunks() {
        let operand = Operand {
            step: 1,
            column_bytes: 4,
            figures: 1,
            tokens: 64,
            one_part: true,
        };
        for (dtype, d_in) in [
            (DType::Q4_K, 4096),
            (DType::Q4_K, 256 * 17),
            (DType::Q8_0, 32 * 161),
            (DType::F16, 5001),
            (DType::F32, 0),
        ] {
            for d_out in [1, 500, 5000] {
                let many =
                    Matrix::many(40, (dtype, d_out, d_in), operand, &caps(99 << 10)).unwrap();
                let n_runs = d_in.div_ceil(RUN);
                assert!(
                    many.splits * many.split_runs >= n_runs
                        && (many.splits - 1) * many.split_runs <= n_runs,
                    "{dtype} {d_out} x {d_in}: {many:?}"
                );
                assert!(
                    many.split_runs.is_multiple_of(chunk_runs(dtype, 1)),
                    "{dtype} {d_out} x {d_in}: {many:?}"
                );
            }
        }
        let narrow = Matrix::many(40, (DType::Q4_K, 500, 4096), operand, &caps(99 << 10)).unwrap();
        assert!(narrow.splits > 1, "few rows are divided: {narrow:?}");
    }

    #[test]
    fn the_order_of_a_sum_of_few_tokens_does_not_depend_on_them() {
        for d_out in [8, 1000, 262_144] {
            let warps = |n_tokens| Matrix::few(n_tokens, (d_out, 4096), 4, &caps(48 << 10)).warps;
            for n_tokens in 2..=FEW_TOKENS {
                assert_eq!(warps(n_tokens), warps(1), "{d_out} rows, {n_tokens} tokens");
            }
        }
    }
}
