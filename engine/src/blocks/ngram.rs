//! Embeddings of the n-grams that end at each token, and the layer that adds them to a residual of several streams.

use gemel_core::DType;
use gemel_core::error::GraphError;
use gemel_core::graph::{Tensor, ValueId};
use gemel_core::ops::causal_conv::CausalConv;
use gemel_core::ops::gather_rows::GatherRows;
use gemel_core::ops::ngram_hash::NgramHash;
use gemel_core::ops::ple_gate::PleGate;
use gemel_core::ops::rms_norm::RmsNorm;

use super::{StepGraph, Streams, input};
use crate::ngram::NgramTable;
use crate::state::StateLayer;
use crate::weights::{Linear, Requests, RowPlace, WeightError, WeightId};

/// The layer that gates embeddings of n-grams by their agreement with each stream, and adds them and their convolution
/// along the sequence.
#[derive(Clone, Debug)]
pub struct NgramLayer {
    streams: Streams,
    key: Linear,
    value: Linear,
    key_norm: WeightId,
    query_norm: WeightId,
    conv_norm: WeightId,
    /// `[n * d_model, n_taps]`
    conv: WeightId,
    n_taps: usize,
    /// Tokens between taps.
    dilation: usize,
}

impl NgramLayer {
    /// Requests `LABEL_key`, `LABEL_value`, their norms and the convolution; `d_in` are the channels of a token's
    /// embeddings.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(
        requests: &mut Requests<'_>,
        label: &str,
        streams: Streams,
        d_in: usize,
        [n_taps, dilation]: [usize; 2],
    ) -> Result<Self, WeightError> {
        let name = |what: &str| format!("{label}_{what}");
        let width = streams.width();
        Ok(Self {
            streams,
            key: requests.linear(&name("key"), width, d_in)?,
            value: requests.linear(&name("value"), streams.d_model, d_in)?,
            key_norm: streams.vector(requests, &name("norm_key"))?,
            query_norm: streams.vector(requests, &name("norm_query"))?,
            conv_norm: streams.vector(requests, &name("norm_conv"))?,
            conv: requests.table(&name("conv1d.weight"), &[width, n_taps])?,
            n_taps,
            dilation,
        })
    }

    /// What it keeps of a sequence.
    pub fn state(&self) -> StateLayer {
        StateLayer {
            n_channels: self.streams.width(),
            history: (self.n_taps - 1) * self.dilation,
            delta: None,
        }
    }
}

impl StepGraph<'_> {
    /// The embeddings of the n-grams that end at each token, one after the other. `[n_tokens, n_channels]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn ngram_rows(
        &mut self,
        table: &NgramTable,
        [multipliers, heads]: &[Tensor; 2],
    ) -> Result<ValueId, GraphError> {
        let n = self.shape.n_tokens;
        let hashes = &table.hashes;
        let RowPlace::Device(weight) = table.rows.place else {
            let shape = [n, table.n_channels()];
            return Ok((self.graph).step_input(input::NGRAM_ROWS, DType::F32, shape));
        };
        let shape = [n, hashes.longest()];
        let ids = self.graph.step_input(input::NGRAMS, DType::I32, shape);
        let multipliers = self.tensor("ngram_multipliers", multipliers);
        let heads = self.tensor("ngram_heads", heads);
        let hash = NgramHash {
            eos: hashes.eos.cast_signed(),
            n_heads_per_ngram: hashes.n_heads_per_ngram,
        };
        let rows = (self.graph).apply("ngram_hash", hash, &[ids, multipliers, heads])?;
        let rows = self.graph.reshape(rows, [n * hashes.heads.len()])?;
        let weight = self.weight("ngram_table", weight);
        let gather = GatherRows {
            scale: table.rows.scale,
        };
        let rows = self.graph.apply("ngram_rows", gather, &[weight, rows])?;
        self.graph.reshape(rows, [n, table.n_channels()])
    }

    /// Adds what the embeddings `e` of n-grams say to the streams `r`. `(index, layer)`: its place among the recurrent
    /// layers and among all. `[n_tokens, n, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn ngram_layer(
        &mut self,
        (index, layer): (usize, usize),
        ngram: &NgramLayer,
        e: ValueId,
        r: ValueId,
    ) -> Result<ValueId, GraphError> {
        let label = |what: &str| format!("blk.{layer}.ple_{what}");
        let streams = ngram.streams;
        let by_stream = [self.shape.n_tokens, streams.n, streams.d_model];
        let by_token = [self.shape.n_tokens, streams.width()];
        let key = self.linear(&ngram.key, e)?;
        let key = self.graph.reshape(key, by_stream)?;
        let value = self.linear(&ngram.value, e)?;
        let key_norm = self.stream_vector(streams, &label("norm_key"), ngram.key_norm)?;
        let query_norm = self.stream_vector(streams, &label("norm_query"), ngram.query_norm)?;
        let gate = PleGate { eps: streams.eps };
        let inputs = [key, value, r, key_norm, query_norm];
        let u = self.graph.apply(label("gate"), gate, &inputs)?;

        let conv_norm = self.stream_vector(streams, &label("norm_conv"), ngram.conv_norm)?;
        let norm = RmsNorm { eps: streams.eps };
        let normed = (self.graph).apply(label("norm_conv"), norm, &[u, conv_norm])?;
        let normed = self.graph.reshape(normed, by_token)?;
        let runs = self.runs();
        let ring = self.memory.states().layer(index).ring.clone();
        let ring = self.graph.bind(label("conv_state"), &ring);
        let taps = self.weight(&label("conv1d"), ngram.conv);
        let taps = (self.graph).reshape(taps, [streams.width(), ngram.n_taps])?;
        let conv = CausalConv {
            dilation: ngram.dilation,
            silu: true,
        };
        let inputs = [normed, taps, runs];
        let y = (self.graph).apply_multi(label("conv"), conv, &inputs, &[ring])?[0];
        let y = self.graph.reshape(y, by_stream)?;

        let r = self.add(&label("gated"), r, u)?;
        self.add(&label("residual"), r, y)
    }
}
