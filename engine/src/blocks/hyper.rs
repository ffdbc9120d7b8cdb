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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gemel_core::device::{Device, submit};
    use gemel_core::graph::Tensor;
    use gemel_core::plan::{Arena, compile};
    use gemel_core::reference::ReferenceDevice;
    use gemel_core::{DType, TensorDesc};

    use super::*;
    use crate::blocks::{Head, Precision, StepShape};
    use crate::gguf::write::TensorSpec;
    use crate::gguf::{Gguf, GgufFile, Metadata, TensorInfo, TensorSource};
    use crate::kv_cache::CacheConfig;
    use crate::memory::SequenceMemory;

    const N: usize = 3;
    const D: usize = 8;
    const N_TOKENS: usize = 2;

    /// A number in -1 .. 1 that looks random.
    fn noise(seed: usize, i: usize) -> f32 {
        let z = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64 + 7);
        let z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z >> 40) as f32) / 8_388_608.0 - 1.0
    }

    fn noises(seed: usize, n: usize) -> Vec<f32> {
        (0..n).map(|i| noise(seed, i)).collect()
    }

    /// The weights of a mixer.
    #[derive(Clone, Debug)]
    struct Weighed {
        low_rank: usize,
        norm: Vec<f32>,
        down: Vec<f32>,
        up: Vec<f32>,
        inject: Vec<f32>,
    }

    impl Weighed {
        fn new(low_rank: usize) -> Self {
            Self {
                low_rank,
                norm: noises(1, N * D).iter().map(|w| 1.0 + 0.5 * w).collect(),
                down: noises(2, low_rank * N * D),
                up: noises(3, N * D * low_rank),
                inject: noises(4, N * N * D),
            }
        }

        fn streams(&self) -> Streams {
            Streams {
                n: N,
                d_model: D,
                low_rank: self.low_rank,
                eps: 1e-6,
            }
        }

        /// A model of these tensors alone.
        fn file(&self) -> GgufFile {
            // Norms are there in either shape.
            let norm = if self.low_rank.is_multiple_of(2) {
                vec![N, D]
            } else {
                vec![N * D]
            };
            let shapes = [
                ("norm", norm),
                ("down", vec![self.low_rank, N * D]),
                ("up", vec![N * D, self.low_rank]),
                ("inject", vec![N, N * D]),
            ];
            let specs = shapes.map(|(name, shape)| TensorSpec {
                name: format!("mix_{name}.weight"),
                dtype: DType::F32,
                shape,
            });
            let gguf = Gguf::from_specs(Metadata::new(), &specs).unwrap();
            GgufFile::from_source(gguf, Box::new(self.clone()))
        }

        /// Mean, weights of the streams and new residual by the formulas, in f64.
        fn expected(&self, r: &[f32], x: &[f32]) -> [Vec<f64>; 3] {
            let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
            let dot = |w: &[f32], v: &[f64]| -> f64 {
                w.iter().zip(v).map(|(&w, v)| f64::from(w) * v).sum()
            };
            let mut found = [const { Vec::new() }; 3];
            for (r, x) in r.chunks(N * D).zip(x.chunks(D)) {
                let normed: Vec<f64> = (r.chunks(D).zip(self.norm.chunks(D)))
                    .flat_map(|(r, w)| {
                        let squares = r.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                        let rms = (squares / D as f64 + 1e-6).sqrt();
                        let scaled = r.iter().zip(w);
                        scaled.map(move |(&v, &w)| f64::from(v) / rms * f64::from(w))
                    })
                    .collect();
                let low: Vec<f64> = (self.down.chunks(N * D))
                    .map(|w| dot(w, &normed) / N as f64)
                    .map(|v| v * sigmoid(v))
                    .collect();
                let gate = |i: usize| {
                    let row = &self.up[i * self.low_rank..(i + 1) * self.low_rank];
                    sigmoid(dot(row, &low))
                };
                for i in 0..D {
                    let sum: f64 = (0..N).map(|c| normed[c * D + i] * gate(c * D + i)).sum();
                    found[0].push(sum / N as f64);
                }
                for (c, w) in self.inject.chunks(N * D).enumerate() {
                    let inject = dot(w, &normed) / N as f64;
                    found[1].push(inject);
                    for (r, x) in r[c * D..(c + 1) * D].iter().zip(x) {
                        found[2].push(f64::from(*r) + 2.0 * sigmoid(inject) * f64::from(*x));
                    }
                }
            }
            found
        }

        /// The same of the graph on the reference, and the ops that ran.
        fn found(&self, r: &[f32], x: &[f32]) -> ([Vec<f64>; 3], Vec<&'static str>) {
            let device = ReferenceDevice::new();
            let file = self.file();
            let mut requests = Requests::new(&file, "test");
            let mixer = StreamMixer::load(&mut requests, "mix", self.streams()).unwrap();
            let weights = requests.upload(&device, &mut |_, _| {}).unwrap();
            let config = CacheConfig {
                n_ctx: 64,
                n_seqs: 1,
                n_ubatch: 8,
                k_type: DType::F32,
                v_type: DType::F32,
            };
            let memory = SequenceMemory::new(&[], &[], config, &device).unwrap();
            let shape = StepShape {
                n_tokens: N_TOKENS,
                n_outputs: 0,
                max_len: 64,
                head: Head::Logits,
            };
            let caps = device.caps();
            let mut g = StepGraph::new(shape, &weights, &memory, Precision::Strict, caps).unwrap();
            let mut bind = |values: &[f32], shape: &[usize]| {
                let desc = TensorDesc::f32(shape);
                let buffer = device.alloc(desc.n_bytes() as u64, "test").unwrap();
                let bytes = bytemuck::cast_slice(values);
                device.write(&buffer, 0, bytes).unwrap();
                let buffers = vec![buffer];
                g.tensor("test", &Tensor { desc, buffers })
            };
            let (r, x) = (bind(r, &[N_TOKENS, N, D]), bind(x, &[N_TOKENS, D]));
            let [mean, inject] = g.mix_streams(&mixer, r).unwrap();
            let combined = g.combine_streams("combine", r, x, inject).unwrap();
            // Copies, because a view cannot be read back.
            let inject = g.add("inject", inject, inject).unwrap();
            for value in [mean, inject, combined] {
                g.graph.output(value);
            }
            let plan = compile("test", g.graph, &device, &mut Arena::default()).unwrap();
            let plan = Arc::new(plan);
            let ops = plan.steps.iter().map(|step| step.op.name()).collect();
            let recording = device.record(&plan).unwrap();
            let pending = submit(&device, &recording, &[], plan.readback.as_ref()).unwrap();
            let bytes = device.finish(pending).unwrap();
            let read = |index: usize| -> Vec<f64> {
                let output = &plan.outputs[index];
                let bytes = &bytes[output.offset..output.offset + output.desc.n_bytes()];
                bytes
                    .chunks_exact(4)
                    .map(|w| f64::from(f32::from_le_bytes([w[0], w[1], w[2], w[3]])))
                    .collect()
            };
            let halves = read(1).iter().map(|twice| twice / 2.0).collect();
            ([read(0), halves, read(2)], ops)
        }
    }

    impl TensorSource for Weighed {
        fn fill(&self, t: &TensorInfo, start: usize, out: &mut [u8]) {
            let values = match t.name.as_str() {
                "mix_norm.weight" => &self.norm,
                "mix_down.weight" => &self.down,
                "mix_up.weight" => &self.up,
                _ => &self.inject,
            };
            out.copy_from_slice(&bytemuck::cast_slice(values)[start..start + out.len()]);
        }
    }

    fn check(weighed: &Weighed) -> ([Vec<f64>; 3], Vec<f32>, Vec<f32>) {
        let (r, x) = (noises(5, N_TOKENS * N * D), noises(6, N_TOKENS * D));
        let (found, _) = weighed.found(&r, &x);
        for (what, (found, expected)) in found.iter().zip(&weighed.expected(&r, &x)).enumerate() {
            assert_eq!(found.len(), expected.len(), "output {what}");
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "output {what}, element {i}: {found}, not {expected}"
                );
            }
        }
        (found, r, x)
    }

    #[test]
    fn mixing_and_combining_follow_the_formulas() {
        // Rows that share a product, and rows that cannot; norms of two axes, and of one.
        for (low_rank, n_products) in [(8, 2), (6, 3), (5, 3)] {
            let weighed = Weighed::new(low_rank);
            check(&weighed);
            let (_, ops) = weighed.found(&noises(5, N_TOKENS * N * D), &noises(6, N_TOKENS * D));
            let products = ops.iter().filter(|&&op| op == "matmul").count();
            assert_eq!(products, n_products, "low rank {low_rank}: {ops:?}");
        }
    }

    #[test]
    fn gates_of_zero_halve_the_mean_and_injection_of_zero_adds() {
        let mut weighed = Weighed::new(8);
        weighed.up.fill(0.0);
        weighed.inject.fill(0.0);
        let ([mean, inject, combined], r, x) = check(&weighed);
        // Streams all alike: their mean is the norm of one.
        let alike: Vec<f32> = (0..N_TOKENS)
            .flat_map(|token| r[token * D..(token + 1) * D].repeat(N))
            .collect();
        let mut unweighed = weighed.clone();
        unweighed.norm.fill(1.0);
        let ([half, ..], _) = unweighed.found(&alike, &x);
        for (token, half) in half.chunks(D).enumerate() {
            let squares: f64 = half.iter().map(|v| (2.0 * v).powi(2)).sum();
            assert!(
                (squares / D as f64 - 1.0).abs() < 1e-4,
                "token {token}: {squares}"
            );
        }
        assert!(mean.iter().any(|&v| v != 0.0), "something is left");
        assert!(inject.iter().all(|&v| v == 0.0), "no injection");
        for (i, sum) in combined.iter().enumerate() {
            let (token, channel) = (i / (N * D), i % D);
            let exact = f64::from(r[i]) + f64::from(x[token * D + channel]);
            assert!((sum - exact).abs() < 1e-6, "element {i} is a plain sum");
        }
    }
}
