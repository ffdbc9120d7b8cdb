//! Hyper-connections: a residual of several streams, of which each block reads a gated mean and to which it adds its
//! result with a weight for each stream.
//!
//! ```text
//! n[c] = rms_norm(r[c]) * w[c],   g = up(silu(down(n) / C)),   m = 1 / C * sum_c n[c] * sigmoid(g[c])
//! r[c] += 2 * sigmoid(inject(n)[c] / C) * block(m)
//! ```
//!
//! There are no other norms. `down` and `inject` read the same rows, so they are one product where their rows allow it.

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::hc_combine::HcCombine;
use gemel_core::ops::hc_mix::HcMix;
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::ops::unary::{Unary, UnaryKind};

use super::StepGraph;
use crate::weights::{Linear, Requests, WeightError, WeightId};

/// Sizes of a residual of several streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// Streams.
    pub n: usize,
    /// Width of a stream.
    pub d_model: usize,
    /// Width between the projections of the gates.
    pub low_rank: usize,
    /// Added to the means of squares.
    pub eps: f32,
}

impl Streams {
    /// Width of all streams together.
    pub fn width(&self) -> usize {
        self.n * self.d_model
    }

    /// A vector with a value for every channel of every stream, in files of shape `[n * d_model]` or `[n, d_model]`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn vector(
        &self,
        requests: &mut Requests<'_>,
        label: &str,
    ) -> Result<WeightId, WeightError> {
        let name = format!("{label}.weight");
        let by_stream = [self.n, self.d_model];
        match requests.shape(&name) {
            Some(shape) if *shape == by_stream => requests.table(&name, &by_stream),
            _ => requests.table(&name, &[self.width()]),
        }
    }

    /// A product whose result is a mean over the streams.
    fn mean(&self, mut linear: Linear) -> Linear {
        linear.scale /= self.n as f32;
        linear
    }
}

/// The gated mean of the streams.
#[derive(Clone, Debug)]
pub struct StreamMean {
    streams: Streams,
    label: String,
    norm: WeightId,
    /// To `low_rank`; with rows for the weights of the streams behind where a [`StreamMixer`] says so.
    down: Linear,
    up: Linear,
}

/// The gated mean of the streams, and the weights with which a block's result goes back to them.
#[derive(Clone, Debug)]
pub struct StreamMixer {
    mean: StreamMean,
    /// `None` where its rows are the last ones of the mean's `down`.
    inject: Option<Linear>,
}

impl StreamMean {
    /// Requests `LABEL_norm`, `LABEL_down` and `LABEL_up`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(
        requests: &mut Requests<'_>,
        label: &str,
        streams: Streams,
    ) -> Result<Self, WeightError> {
        let down = format!("{label}_down");
        let down = requests.linear(&down, streams.low_rank, streams.width())?;
        Self::with_down(requests, label, streams, down)
    }

    fn with_down(
        requests: &mut Requests<'_>,
        label: &str,
        streams: Streams,
        down: Linear,
    ) -> Result<Self, WeightError> {
        Ok(Self {
            streams,
            label: label.to_owned(),
            norm: streams.vector(requests, &format!("{label}_norm"))?,
            down: streams.mean(down),
            up: requests.linear(&format!("{label}_up"), streams.width(), streams.low_rank)?,
        })
    }
}

impl StreamMixer {
    /// Requests what [`StreamMean::load`] does, and `LABEL_inject`.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(
        requests: &mut Requests<'_>,
        label: &str,
        streams: Streams,
    ) -> Result<Self, WeightError> {
        let name = |what: &str| format!("{label}_{what}");
        let (down, inject) = (name("down"), name("inject"));
        let parts = [
            (down.as_str(), streams.low_rank),
            (inject.as_str(), streams.n),
        ];
        let width = streams.width();
        if let Some(both) = requests.opt_stacked(&name("down_inject"), &parts, width)? {
            return Ok(Self {
                mean: StreamMean::with_down(requests, label, streams, both)?,
                inject: None,
            });
        }
        Ok(Self {
            mean: StreamMean::load(requests, label, streams)?,
            inject: Some(streams.mean(requests.linear(&inject, streams.n, width)?)),
        })
    }
}

impl StepGraph<'_> {
    /// The streams of a residual at its start, all alike. `[n_tokens, n, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn streams(&mut self, streams: Streams, x: ValueId) -> Result<ValueId, GraphError> {
        self.graph.repeat(x, 1, streams.n)
    }

    /// A vector of [`Streams::vector`] as a value. `[n, d_model]`
    pub(super) fn stream_vector(
        &mut self,
        streams: Streams,
        label: &str,
        id: WeightId,
    ) -> Result<ValueId, GraphError> {
        let vector = self.weight(label, id);
        self.graph.reshape(vector, [streams.n, streams.d_model])
    }

    /// The gated mean of the streams `r`. `[n_tokens, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn stream_mean(&mut self, mean: &StreamMean, r: ValueId) -> Result<ValueId, GraphError> {
        Ok(self.project_streams(mean, r)?.0)
    }

    /// The gated mean of the streams `r`, and the weights for [`combine_streams`](Self::combine_streams).
    /// `[n_tokens, d_model]`, `[n_tokens, n]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn mix_streams(
        &mut self,
        mixer: &StreamMixer,
        r: ValueId,
    ) -> Result<[ValueId; 2], GraphError> {
        let (mean, normed, projected) = self.project_streams(&mixer.mean, r)?;
        let Streams { n, low_rank, .. } = mixer.mean.streams;
        let inject = match &mixer.inject {
            Some(inject) => self.linear(inject, normed)?,
            None => self.graph.narrow(projected, 1, low_rank, n)?,
        };
        Ok([mean, inject])
    }

    /// The gated mean, the normed streams as rows, and their product with `down`.
    fn project_streams(
        &mut self,
        mean: &StreamMean,
        r: ValueId,
    ) -> Result<(ValueId, ValueId, ValueId), GraphError> {
        let streams = mean.streams;
        let label = |what: &str| format!("{}_{what}", mean.label);
        let n_rows = self.graph.desc(r).shape[0];
        let weight = self.stream_vector(streams, &label("norm"), mean.norm)?;
        let norm = RmsNorm { eps: streams.eps };
        let normed = self.graph.apply(label("norm"), norm, &[r, weight])?; // [n_rows, n, d_model]
        let rows = self.graph.reshape(normed, [n_rows, streams.width()])?;
        let projected = self.linear(&mean.down, rows)?;
        let low = self.graph.narrow(projected, 1, 0, streams.low_rank)?;
        let silu = Unary {
            kind: UnaryKind::Silu,
        };
        let low = self.graph.apply(label("silu"), silu, &[low])?;
        let gate = self.linear(&mean.up, low)?;
        let gate = (self.graph).reshape(gate, [n_rows, streams.n, streams.d_model])?;
        let mixed = self.graph.apply(label("mix"), HcMix, &[normed, gate])?;
        Ok((mixed, rows, projected))
    }

    /// Adds a block's result `x` to every stream of `r`, with the weights of [`mix_streams`](Self::mix_streams).
    /// `[n_tokens, n, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn combine_streams(
        &mut self,
        label: &str,
        r: ValueId,
        x: ValueId,
        inject: ValueId,
    ) -> Result<ValueId, GraphError> {
        // The weights are means already.
        let combine = HcCombine { scale: 1.0 };
        self.graph.apply(label, combine, &[r, x, inject])
    }

    /// The rows of `r` whose logits are wanted, or `None` while a prompt is only cached. `[n_outputs, n, d_model]`
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn output_streams(
        &mut self,
        streams: Streams,
        r: ValueId,
    ) -> Result<Option<ValueId>, GraphError> {
        let rows = self
            .graph
            .reshape(r, [self.shape.n_tokens, streams.width()])?;
        let Some(rows) = self.output_rows(rows)? else {
            return Ok(None);
        };
        // A view even where these are all rows: a norm that is fused with the last sum in steps of one token, and only
        // in these, would give them other bits than a step that verifies several.
        let shape = [self.shape.n_outputs, streams.n, streams.d_model];
        self.graph.reshape(rows, shape).map(Some)
    }
}
