//! The graph of a step under construction, and the pieces that architectures share.

mod block_indexer;
mod fill;
mod hyper;
mod latent;
mod ngram;
mod recurrent;
pub mod sparse;

pub use block_indexer::BlockIndexer;
pub use hyper::{StreamMean, StreamMixer, Streams};
pub use latent::{LatentAttention, LatentInput, LatentSizes, LightningIndexer, Selector};
pub use ngram::NgramLayer;
pub use recurrent::{DeltaNet, GatedAttention, GatedQkv, Gates, Qkvz};

use gemel_core::error::GraphError;
use gemel_core::graph::{Graph, Tensor, ValueId};
use gemel_core::op::{Caps, DeviceClass};
use gemel_core::ops::{
    add::Add,
    attention::Attention,
    gather_rows::GatherRows,
    glu::{Glu, GluKind},
    kv_write::KvWrite,
    matmul::{FEW_TOKENS, Factors, Matmul},
    matmul_q8::{self, MatmulQ8},
    quantize_q8::QuantizeQ8,
    rms_norm::RmsNorm,
    rope::Rope,
    scatter_rows::ScatterRows,
};
use gemel_core::{DType, PAGE};

use crate::memory::SequenceMemory;
use crate::rope::RopeConfig;
use crate::weights::{Linear, WeightId, Weights};

/// How activations enter a product with quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// As f32: exact up to rounding.
    #[default]
    Strict,
    /// Re-quantised to 8-bit blocks of 32, for the weight types that have integer kernels, where the device is
    /// faster that way; many tokens on tensor cores, and other weight types there, rounded to bf16 together with the
    /// weights. Moves log-probabilities by up to half a unit, which can turn near-ties.
    Fast,
}

/// The shape bucket of a step: everything a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepShape {
    /// Rows of the step, padding included.
    pub n_tokens: usize,
    /// Rows whose logits are wanted, padding included; 0 while a prompt is only cached.
    pub n_outputs: usize,
    /// Upper bound of every position + 1.
    pub max_len: usize,
    /// What is computed of the logits.
    pub head: Head,
}

/// What a step returns for each output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Head {
    /// All logits.
    Logits,
    /// The most likely token.
    Argmax,
    /// The `k` most likely tokens with their logits, and the softmax statistics of all.
    TopK(usize),
}

/// Step inputs by name: the engine writes them, graphs read them.
pub mod input {
    /// Token ids, i32 `[n_tokens]`.
    pub const TOKENS: &str = "tokens";
    /// Positions, i32 `[n_tokens]`.
    pub const POSITIONS: &str = "positions";
    /// Row of the page table of each token, i32 `[n_tokens]`, -1 for padding.
    pub const SEQ_ROWS: &str = "seq_rows";
    /// Rows whose logits are wanted, i32 `[n_outputs]`, -1 for padding.
    pub const OUTPUTS: &str = "output_rows";
    /// The runs of the step, i32 `[n_runs, 4]`: slot row of the sequence, first row in the step, number of rows,
    /// position of the first row. A run is the tokens of one sequence, which are then neighbours; runs are in the
    /// order of their rows. -1 everywhere where there are fewer. Only for graphs that ask with
    /// [`StepGraph::runs`](super::StepGraph::runs).
    pub const RUNS: &str = "runs";

    /// For each run, i32 `[n_runs, 2]`: recorded tokens of the last step that the sequence still has, and the half of
    /// the record that holds them. Only for graphs with recurrent layers.
    pub const COMMITS: &str = "commits";

    /// For each token, i32 `[n_tokens, n]`: its id and those of the `n - 1` tokens before it in its sequence, the nearest
    /// first, -1 where there is none. Only for graphs with n-grams whose table is in device memory.
    pub const NGRAMS: &str = "ngrams";

    /// For each token the rows that its n-grams name, f32 `[n_tokens, n_channels]`. Only for graphs with n-grams whose
    /// table is in the file.
    pub const NGRAM_ROWS: &str = "ngram_rows";

    /// Cells of the tokens in a group's cache, i32 `[n_tokens]`, -1 for padding.
    pub fn slots(group: usize) -> String {
        format!("slots.{group}")
    }

    /// Entries of a group's page table to be set, i32 `[n]`, -1 for none.
    pub fn table_index(group: usize) -> String {
        format!("table_index.{group}")
    }

    /// Their values, i32 `[n, 1]`.
    pub fn table_value(group: usize) -> String {
        format!("table_value.{group}")
    }
}

/// Step inputs that belong to a group of layers.
#[derive(Clone, Copy, Debug)]
struct GroupInputs {
    slots: ValueId,
    table: ValueId,
}

/// A graph under construction with everything that blocks need.
#[derive(Debug)]
pub struct StepGraph<'a> {
    /// The graph.
    pub graph: Graph,
    /// Shape bucket.
    pub shape: StepShape,
    weights: &'a Weights,
    memory: &'a SequenceMemory,
    precision: Precision,
    /// Whether products of many tokens are faster with factors in bf16 than with activations in bytes, whose sums have
    /// to be scaled block by block.
    rounds_to_bf16: bool,
    tokens: ValueId,
    positions: ValueId,
    seq_rows: ValueId,
    outputs: Option<ValueId>,
    runs: Option<ValueId>,
    commits: Option<ValueId>,
    groups: Vec<GroupInputs>,
    /// The last value that was re-quantised: q, k and v share one.
    quantized: Option<(ValueId, [ValueId; 2])>,
}

/// What one attention layer needs besides weights.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Channels of a key.
    pub k_dim: usize,
    /// Channels of a value.
    pub v_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scores, 0 for none.
    pub softcap: f32,
    /// Sliding window, 0 for none.
    pub window: usize,
}

/// The projections of an attention layer.
#[derive(Clone, Debug)]
pub enum Qkv {
    /// Three matrices.
    Split {
        /// Queries.
        q: Linear,
        /// Keys.
        k: Linear,
        /// Values.
        v: Linear,
    },
    /// One matrix with the rows of all three.
    Fused(Linear),
}

/// The first two projections of a gated FFN.
#[derive(Clone, Debug)]
pub enum GateUp {
    /// Two matrices.
    Split {
        /// Gate.
        gate: Linear,
        /// Up.
        up: Linear,
    },
    /// One matrix with the rows of both.
    Stacked(Linear),
}

/// Gate, up and down of a gated FFN.
#[derive(Clone, Debug)]
pub struct GatedFfn {
    /// Gate and up.
    pub gate_up: GateUp,
    /// Width between.
    pub d_ff: usize,
    /// Down.
    pub down: Linear,
    /// Activation.
    pub kind: GluKind,
}

impl<'a> StepGraph<'a> {
    /// Declares the step inputs and brings the page tables up to date.
    ///
    /// # Errors
    /// Never for a consistent cache.
    pub fn new(
        shape: StepShape,
        weights: &'a Weights,
        memory: &'a SequenceMemory,
        precision: Precision,
        caps: &Caps,
    ) -> Result<Self, GraphError> {
        let mut graph = Graph::new();
        let n = shape.n_tokens;
        let tokens = graph.step_input(input::TOKENS, DType::I32, [n]);
        let positions = graph.step_input(input::POSITIONS, DType::I32, [n]);
        let seq_rows = graph.step_input(input::SEQ_ROWS, DType::I32, [n]);
        let outputs = (shape.n_outputs > 0)
            .then(|| graph.step_input(input::OUTPUTS, DType::I32, [shape.n_outputs]));
        let mut groups = Vec::new();
        let cache = memory.kv();
        for group in 0..cache.n_groups() {
            let slots = graph.step_input(input::slots(group), DType::I32, [n]);
            let n_updates = cache.max_table_updates(n);
            let index = graph.step_input(input::table_index(group), DType::I32, [n_updates]);
            let value = graph.step_input(input::table_value(group), DType::I32, [n_updates, 1]);
            let table = graph.bind(format!("page_table.{group}"), cache.table(group));
            let n_entries = graph.desc(table).n_elems();
            let entries = graph.reshape(table, [n_entries, 1])?;
            graph.apply_multi(
                format!("page_table.{group}"),
                ScatterRows,
                &[value, index],
                &[entries],
            )?;
            groups.push(GroupInputs { slots, table });
        }
        // The reference has nothing to gain, and software drivers emulate integer dots: f32 is faster there.
        let precision = match caps.class {
            DeviceClass::Reference | DeviceClass::Software => Precision::Strict,
            DeviceClass::Integrated | DeviceClass::Discrete => precision,
        };
        Ok(Self {
            graph,
            shape,
            weights,
            memory,
            precision,
            rounds_to_bf16: caps.bf16_tensor_cores,
            tokens,
            positions,
            seq_rows,
            outputs,
            runs: None,
            commits: None,
            groups,
            quantized: None,
        })
    }

    /// The runs of the step: what an op needs that works along sequences. i32 `[n_runs, 4]`, see [`input::RUNS`].
    ///
    /// A step of a graph that asks for it refuses sequences whose tokens are not neighbours.
    pub fn runs(&mut self) -> ValueId {
        let n_runs = self.shape.n_tokens.min(self.memory.config().n_seqs);
        let graph = &mut self.graph;
        *self
            .runs
            .get_or_insert_with(|| graph.step_input(input::RUNS, DType::I32, [n_runs, 4]))
    }

    /// A weight as a value.
    pub fn weight(&mut self, label: &str, id: WeightId) -> ValueId {
        self.graph.bind(label, self.weights.tensor(id))
    }

    /// A tensor that the model keeps in device memory.
    pub fn tensor(&mut self, label: &str, tensor: &Tensor) -> ValueId {
        self.graph.bind(label, tensor)
    }

    /// Rows of the embedding table, times `scale`. `[n_tokens, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn embed(&mut self, table: WeightId, scale: f32) -> Result<ValueId, GraphError> {
        let table = self.weight("token_embd", table);
        self.graph
            .apply("token_embd", GatherRows { scale }, &[table, self.tokens])
    }

    /// `x · Wᵀ * scale + bias`. `[.., d_out]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn linear(&mut self, linear: &Linear, x: ValueId) -> Result<ValueId, GraphError> {
        let scale = linear.scale;
        let operands = self.operands(linear);
        let dtype = self.graph.desc(operands[0]).dtype;
        let rounds = self.rounds_to_bf16 && self.graph.desc(x).rows() > FEW_TOKENS;
        if self.precision == Precision::Fast && !rounds && matmul_q8::TYPES.contains(&dtype) {
            let parts = self.quantize(&linear.label, x)?;
            let inputs = [&parts[..], &operands].concat();
            return (self.graph).apply(&*linear.label, MatmulQ8 { scale }, &inputs);
        }
        let inputs = [vec![x], operands].concat();
        let factors = match self.precision {
            Precision::Strict => Factors::Exact,
            Precision::Fast => Factors::Bf16,
        };
        (self.graph).apply(&*linear.label, Matmul { scale, factors }, &inputs)
    }

    /// The same with activations as they are, whatever the precision of other products: for what a choice hangs on.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn exact_linear(&mut self, linear: &Linear, x: ValueId) -> Result<ValueId, GraphError> {
        let scale = linear.scale;
        let inputs = [vec![x], self.operands(linear)].concat();
        (self.graph).apply(
            &*linear.label,
            Matmul {
                scale,
                factors: Factors::Exact,
            },
            &inputs,
        )
    }

    /// A matrix, and its bias if there is one.
    fn operands(&mut self, linear: &Linear) -> Vec<ValueId> {
        let mut operands = vec![self.weight(&linear.label, linear.weight)];
        if let Some(id) = linear.bias {
            operands.push(self.weight(&format!("{}.bias", linear.label), id));
        }
        operands
    }

    fn quantize(&mut self, label: &str, x: ValueId) -> Result<[ValueId; 2], GraphError> {
        if let Some((of, parts)) = self.quantized
            && of == x
        {
            return Ok(parts);
        }
        let parts = self
            .graph
            .apply_multi(format!("{label}.q8"), QuantizeQ8, &[x], &[])?;
        let parts = [parts[0], parts[1]];
        self.quantized = Some((x, parts));
        Ok(parts)
    }

    /// Root mean square norm of the last axis.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn rms_norm(
        &mut self,
        label: &str,
        x: ValueId,
        w: WeightId,
        eps: f32,
    ) -> Result<ValueId, GraphError> {
        let w = self.weight(label, w);
        self.graph.apply(label, RmsNorm { eps }, &[x, w])
    }

    /// `a + b`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn add(&mut self, label: &str, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.graph.apply(label, Add, &[a, b])
    }

    /// Queries, keys and values by head. `[n_tokens, heads, dim]` each
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn qkv(
        &mut self,
        qkv: &Qkv,
        at: &AttentionShape,
        x: ValueId,
    ) -> Result<[ValueId; 3], GraphError> {
        let n = self.shape.n_tokens;
        let widths = [
            at.n_heads * at.k_dim,
            at.n_kv_heads * at.k_dim,
            at.n_kv_heads * at.v_dim,
        ];
        let parts = match qkv {
            Qkv::Split { q, k, v } => [self.linear(q, x)?, self.linear(k, x)?, self.linear(v, x)?],
            Qkv::Fused(linear) => {
                let all = self.linear(linear, x)?;
                let [q, k, v] = widths;
                [
                    self.graph.narrow(all, 1, 0, q)?,
                    self.graph.narrow(all, 1, q, k)?,
                    self.graph.narrow(all, 1, q + k, v)?,
                ]
            }
        };
        Ok([
            self.graph.reshape(parts[0], [n, at.n_heads, at.k_dim])?,
            self.graph.reshape(parts[1], [n, at.n_kv_heads, at.k_dim])?,
            self.graph.reshape(parts[2], [n, at.n_kv_heads, at.v_dim])?,
        ])
    }

    /// Rotates the heads of `x` by their tokens' positions.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn rope(
        &mut self,
        label: &str,
        x: ValueId,
        config: &RopeConfig,
        table: &Tensor,
    ) -> Result<ValueId, GraphError> {
        let table = self.tensor("rope_table", table);
        let rope = Rope {
            mode: config.mode,
            n_rot: config.n_rot,
        };
        self.graph.apply(label, rope, &[x, self.positions, table])
    }

    /// Rotates queries and keys: in one pass where they lie side by side.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn rope_qk(
        &mut self,
        layer: usize,
        [q, k]: [ValueId; 2],
        config: &RopeConfig,
        table: &Tensor,
    ) -> Result<[ValueId; 2], GraphError> {
        let label = |what: &str| format!("blk.{layer}.{what}");
        let Some(both) = self.graph.join(q, k, 1) else {
            return Ok([
                self.rope(&label("q_rope"), q, config, table)?,
                self.rope(&label("k_rope"), k, config, table)?,
            ]);
        };
        let (n_heads, n_kv_heads) = (self.graph.desc(q).shape[1], self.graph.desc(k).shape[1]);
        let both = self.rope(&label("qk_rope"), both, config, table)?;
        Ok([
            self.graph.narrow(both, 1, 0, n_heads)?,
            self.graph.narrow(both, 1, n_heads, n_kv_heads)?,
        ])
    }

    /// Writes the keys and values of the step, `[n_tokens, n_kv_heads, dim]`, to the cache of a layer and returns that.
    /// `index` counts the layers that cache keys. A layer whose values are channels of its keys caches these alone.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn write_cache(
        &mut self,
        index: usize,
        layer: usize,
        [k, v]: [ValueId; 2],
    ) -> Result<(ValueId, Option<ValueId>), GraphError> {
        let cache = self.memory.kv().layer(index);
        let slots = self.groups[cache.group].slots;
        let label = |what: &str| format!("blk.{layer}.{what}");
        let k_cache = self.graph.bind(label("k_cache"), &cache.k);
        self.graph
            .apply_multi(label("k_write"), KvWrite, &[k, slots], &[k_cache])?;
        let Some(v_pages) = &cache.v else {
            return Ok((k_cache, None));
        };
        let v_cache = self.graph.bind(label("v_cache"), v_pages);
        self.graph
            .apply_multi(label("v_write"), KvWrite, &[v, slots], &[v_cache])?;
        Ok((k_cache, Some(v_cache)))
    }

    /// Writes `k` and `v` to the cache of a layer, then attends. `[n_tokens, n_heads * v_dim]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn attend(
        &mut self,
        layer: usize,
        at: &AttentionShape,
        qkv: [ValueId; 3],
    ) -> Result<ValueId, GraphError> {
        self.attend_in(layer, layer, at, qkv)
    }

    /// [`attend`](Self::attend) in a model where some layers cache no keys: `index` counts those that do.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn attend_in(
        &mut self,
        index: usize,
        layer: usize,
        at: &AttentionShape,
        [q, k, v]: [ValueId; 3],
    ) -> Result<ValueId, GraphError> {
        let (k_cache, v_cache) = self.write_cache(index, layer, [k, v])?;
        let table = self.groups[self.memory.kv().layer(index).group].table;
        let attention = Attention {
            scale: at.scale,
            softcap: at.softcap,
            window: at.window,
            max_len: self.shape.max_len,
            shared_kv: v_cache.is_none().then_some(at.v_dim),
        };
        let mut inputs = vec![q, k_cache];
        inputs.extend(v_cache);
        inputs.extend([table, self.seq_rows, self.positions]);
        let out = self
            .graph
            .apply(format!("blk.{layer}.attention"), attention, &inputs)?;
        self.graph
            .reshape(out, [self.shape.n_tokens, at.n_heads * at.v_dim])
    }

    /// `down(act(gate(x)) * up(x))`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn gated_ffn(
        &mut self,
        label: &str,
        ffn: &GatedFfn,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let (gate, up) = match &ffn.gate_up {
            GateUp::Split { gate, up } => (self.linear(gate, x)?, self.linear(up, x)?),
            GateUp::Stacked(linear) => {
                let both = self.linear(linear, x)?; // [n_tokens, 2 * d_ff]
                (
                    self.graph.narrow(both, 1, 0, ffn.d_ff)?,
                    self.graph.narrow(both, 1, ffn.d_ff, ffn.d_ff)?,
                )
            }
        };
        let y = self
            .graph
            .apply(format!("{label}.glu"), Glu { kind: ffn.kind }, &[gate, up])?;
        self.linear(&ffn.down, y)
    }

    /// The rows whose logits are wanted, or `None` while a prompt is only cached. `[n_outputs, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn output_rows(&mut self, x: ValueId) -> Result<Option<ValueId>, GraphError> {
        let Some(rows) = self.outputs else {
            return Ok(None);
        };
        if self.shape.n_outputs == self.shape.n_tokens && self.shape.n_tokens == 1 {
            return Ok(Some(x));
        }
        self.graph
            .apply("output_rows", GatherRows { scale: 1.0 }, &[x, rows])
            .map(Some)
    }
}

/// The smallest bucket of cached lengths that holds `len`: powers of two from four pages on.
pub fn len_bucket(len: usize, n_ctx: usize) -> usize {
    len.next_power_of_two()
        .max(4 * PAGE)
        .min(n_ctx.next_multiple_of(PAGE))
}

/// The smallest bucket of row counts that holds `n`: every size up to 8, then four steps to each doubling.
pub fn row_bucket(n: usize) -> usize {
    if n <= 8 {
        return n;
    }
    let step = (n - 1).next_power_of_two() / 8;
    n.next_multiple_of(step.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_are_for_and_waste_little() {
        for n in 1..2000 {
            let bucket = row_bucket(n);
            assert!(bucket >= n && bucket <= n + n / 4 + 1, "{n} -> {bucket}");
        }
        assert_eq!(
            row_bucket(512),
            512,
            "the default micro-batch has no padding"
        );
        assert_eq!(len_bucket(100, 8192), 256, "short contexts share one plan");
        assert_eq!(len_bucket(300, 8192), 512, "doubling");
        assert_eq!(len_bucket(5000, 5000), 5056, "never beyond the context");
    }
}
