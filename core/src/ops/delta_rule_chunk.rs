//! `delta_rule_chunk`: the gated delta rule of long runs, in chunks of [`CHUNK`] tokens: products of small matrices
//! instead of one pass over the state for each token.
//!
//! With `S` as of the token before a chunk, `G_i = g_1 + .. + g_i` and `D_ij = g_(j+1) + .. + g_i` in it, `j <= i`:
//! `A_ij = beta_i <k_i, k_j> e^(D_ij)` for `j < i`, `T = (1 + A)^-1 diag(beta)`, `u_i = sum_j T_ij (v_j - e^(G_j) S k_j)`,
//! `y_i = scale (e^(G_i) S q_i + sum_(j <= i) e^(D_ij) <q_i, k_j> u_j)`, `S <- e^(G_n) S + sum_j e^(D_nj) u_j k_j^T`
//!
//! # Shapes
//! Those of [`delta_rule_step`](super::delta_rule_step), for every operand, and the same result up to rounding.
//! # State
//! As there: a run of more than `m` rows commits what the record still holds, stores `S` as of its last token but `m`,
//! and records its last `m` tokens. It begins a chunk with its first row and one with the first row that it records.
//! # Numerics
//! f32. A run of at most `m` rows goes token by token and has the bits of `delta_rule_step`, whatever else the step
//! holds. The bits of a longer run depend on its rows and on what they continue, not on other runs; how a prompt is cut
//! into runs shows in rounding alone, which is that of sums over a chunk: no exponent is above 0, and every `D_ij` is
//! summed on its own, so that nothing cancels. The inverse has elements of at most `beta |k_i| |k_j|` where
//! `beta |k|^2 <= 2`, which the layers of models keep.
//! # Edge cases
//! `g` below -87 resets the state exactly. Rows of no run, or of a slot that does not exist, give zeros. Where a column
//! of the state is too long for the shared memory of a block, all runs go token by token.
//! # Source
//! Yang et al. 2024, arXiv:2412.06464, section 3.3.

use std::fmt;

use super::delta_rule_step::{DeltaRuleStep, Sizes, delta_cost, delta_tolerance};
use super::take;
use crate::error::OpError;
use crate::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
    fold_grid,
};
use crate::reference::{self, RefArgs};
use crate::tensor::TensorDesc;

/// Tokens of a chunk.
pub const CHUNK: usize = 32;

/// Threads of a block that prepares a chunk: each has 4 x 4 elements of its two matrices.
const PREPARE_THREADS: usize = CHUNK * CHUNK / 16;

/// Shared memory that a block allows itself, in bytes: four of them fit in 100 KiB.
const SHARED_BYTES: usize = 24 * 1024;

/// Floats of a token and value head that the first launch leaves for the second: a row of `T`, a row of the products
/// of queries and keys, four factors.
const PREPARED: usize = 2 * CHUNK + 4;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaRuleChunk {
    /// Heads, scale and normalisation.
    pub rule: DeltaRuleStep,
}

/// What a block of the second launch owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Output channels.
    columns: usize,
    /// Channels of keys and queries that lie in shared memory at a time.
    slice: usize,
}

impl Tile {
    /// The largest that fits, if one does.
    fn new(k_dim: usize, caps: &Caps) -> Option<Self> {
        let limit = (caps.max_shared_bytes as usize).min(SHARED_BYTES);
        let whole = k_dim.next_multiple_of(16);
        let tiles = [16, 8].into_iter().flat_map(|columns| {
            [whole, 64, 32, 16]
                .into_iter()
                .filter(|&slice| slice <= whole)
                .map(move |slice| Self { columns, slice })
        });
        tiles
            .filter(|tile| tile.columns * 4 <= caps.max_threads_per_block as usize)
            .find(|tile| tile.shared_bytes(k_dim) <= limit)
    }

    /// Channels of a key with those that fill its last slice.
    fn padded(self, k_dim: usize) -> usize {
        k_dim.next_multiple_of(self.slice).max(self.slice)
    }

    /// The state, the right-hand sides, a slice of keys and queries, the factors.
    fn shared_bytes(self, k_dim: usize) -> usize {
        4 * (self.padded(k_dim) + CHUNK) * self.columns + 16 * (18 * self.slice + CHUNK)
    }
}

/// Most chunks that a step can have: those of runs of more than the record, two of each perhaps cut short.
fn most_chunks(n_runs: usize, sizes: &Sizes) -> usize {
    sizes.n_tokens / CHUNK + 2 * n_runs.min(sizes.n_tokens / (sizes.n_recorded + 1))
}

impl DeltaRuleChunk {
    /// The one name.
    pub const NAME: &str = "delta_rule_chunk";
}

impl fmt::Display for DeltaRuleChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[{}, n_k_heads={}]",
            Self::NAME,
            self.rule.map.name(),
            self.rule.n_k_heads
        )
    }
}

impl Op for DeltaRuleChunk {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        inouts: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let sizes = self.rule.sizes(Self::NAME, inputs, inouts)?;
        Ok(vec![TensorDesc::f32([
            sizes.n_tokens,
            sizes.n_v_heads,
            sizes.v_dim,
        ])])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let sizes = self
            .rule
            .sizes(Self::NAME, operands.inputs, operands.inouts)?;
        let [qkv, gates, runs, commits] = take(Self::NAME, operands.inputs)?;
        let n_runs = runs.shape[0];
        let by_token = self.rule.by_token(&sizes, caps)?;
        let scratch = 4 * PREPARED * sizes.n_tokens * sizes.n_v_heads;
        let n_chunks = most_chunks(n_runs, &sizes);
        let tile = Tile::new(sizes.k_dim, caps).filter(|_| {
            scratch as u64 <= caps.max_binding_bytes
                && PREPARE_THREADS <= caps.max_threads_per_block as usize
                && n_chunks > 0
        });
        let longest = match tile {
            Some(_) => sizes.n_recorded,
            None => sizes.n_tokens,
        };
        // All entries stand in one file, so they share the constants and the parameter block. Without a tile the
        // first two are not launched, and only have to make sense.
        let Tile { columns, slice } = tile.unwrap_or(Tile {
            columns: 8,
            slice: 16,
        });
        let padded = match tile {
            Some(tile) => tile.padded(sizes.k_dim),
            None => slice,
        };
        let spec = |threads: usize| {
            let mut spec = Spec::threads(threads as u32);
            spec.consts.extend(
                by_token
                    .spec
                    .consts
                    .iter()
                    .filter(|(name, _)| *name != "THREADS"),
            );
            spec.with("CHUNK", CHUNK as u32)
                .with("COLUMNS", columns as u32)
                .with("SLICE", slice as u32)
                .with("PADDED", padded as u32)
        };
        let launch = |entry, spec, n_blocks: usize, n_columns: usize| {
            Ok(Launch {
                entry,
                spec,
                params: Params::new()
                    .u32("n_blocks", n_blocks)
                    .u32("n_columns", n_columns)
                    .and(&self.rule.params(&sizes, [qkv, gates, runs, commits]))
                    .u32("longest", longest),
                grid: fold_grid(n_blocks, caps)?,
                bindings: vec![
                    Binding::Input(0),
                    Binding::Input(1),
                    Binding::Input(2),
                    Binding::Input(3),
                    Binding::Inout(0),
                    Binding::Inout(1),
                    Binding::Output(0),
                    Binding::Scratch(0),
                ],
            })
        };
        let n_columns = sizes.v_dim.div_ceil(columns);
        let mut launches = Launches {
            scratch: vec![if tile.is_some() { scratch } else { 16 }],
            list: Vec::new(),
        };
        if tile.is_some() {
            launches.list.push(launch(
                "delta_rule_chunk_prepare",
                spec(PREPARE_THREADS),
                n_chunks * sizes.n_v_heads,
                n_columns,
            )?);
            launches.list.push(launch(
                Self::NAME,
                spec(4 * columns),
                n_runs * sizes.n_v_heads * n_columns,
                n_columns,
            )?);
        }
        launches.list.push(launch(
            "delta_rule_chunk_short",
            spec(by_token.threads as usize),
            n_runs * sizes.n_v_heads * by_token.n_columns,
            by_token.n_columns,
        )?);
        Ok(launches)
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        delta_cost(operands)
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        delta_tolerance(operands.inouts[0].last() + CHUNK)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Heads
    }

    fn is_hot(&self) -> bool {
        true
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::delta_rule_chunk::delta_rule_chunk(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
