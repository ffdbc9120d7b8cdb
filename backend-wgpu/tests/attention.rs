//! The ops around the cache against their references: `rope`, `kv_write`, `attention`, `scatter_rows`.
//!
//! Every test runs the launches of the device's own class and those of a discrete GPU, whose geometry differs.

use std::sync::Arc;

use gemel_core::device::{Device, submit};
use gemel_core::dtype::CACHE_TYPES;
use gemel_core::format;
use gemel_core::format::cache_row::CacheRow;
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{DeviceClass, Op, Operands};
use gemel_core::ops::attention::Attention;
use gemel_core::ops::kv_write::KvWrite;
use gemel_core::ops::rope::{FINE, Rope, RopeMode};
use gemel_core::ops::scatter_rows::ScatterRows;
use gemel_core::plan::{self, Arena};
use gemel_core::reference::{RefArgs, RefOutput, RefTensor, RefTensorMut};
use gemel_core::tensor::TensorDesc;
use gemel_core::{DType, PAGE};
use gemel_wgpu::{WgpuDevice, WgpuOptions};

/// An operand: description and contents.
type Operand = (TensorDesc, Vec<u8>);

/// One device a class.
fn devices() -> Vec<WgpuDevice> {
    [None, Some(DeviceClass::Discrete)]
        .into_iter()
        .map(|class| {
            let options = WgpuOptions {
                class,
                ..WgpuOptions::new("wgpu")
            };
            WgpuDevice::open(&options).unwrap_or_else(|error| panic!("{error}"))
        })
        .collect()
}

/// A stream of numbers that look random and depend on the seed alone.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Uniform in -1 .. 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

fn f32s(shape: &[usize], values: &[f32]) -> Operand {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (TensorDesc::f32(shape), bytes)
}

fn i32s(shape: &[usize], values: &[i32]) -> Operand {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (TensorDesc::i32(shape), bytes)
}

/// Runs an op on a device; returns the outputs and the in-place operands.
fn run<O: Op + Clone + 'static>(
    device: &dyn Device,
    op: &O,
    inputs: &[Operand],
    inouts: &[Operand],
) -> (Vec<Vec<f32>>, Vec<Vec<u8>>) {
    let tensor = |(desc, bytes): &Operand| {
        let buffer = device.alloc(bytes.len() as u64, "operand").expect("memory");
        device.write(&buffer, 0, bytes).expect("in range");
        Tensor {
            desc: desc.clone(),
            buffers: vec![buffer],
        }
    };
    let input_tensors: Vec<Tensor> = inputs.iter().map(tensor).collect();
    let inout_tensors: Vec<Tensor> = inouts.iter().map(tensor).collect();
    let mut graph = Graph::new();
    let mut bind = |tensors: &[Tensor]| {
        tensors
            .iter()
            .map(|tensor| graph.bind("operand", tensor))
            .collect::<Vec<_>>()
    };
    let (input_ids, inout_ids) = (bind(&input_tensors), bind(&inout_tensors));
    let outputs = graph
        .apply_multi("op", op.clone(), &input_ids, &inout_ids)
        .unwrap_or_else(|error| panic!("{error}"));
    for &output in &outputs {
        graph.output(output);
    }
    let plan = plan::compile("op", graph, device, &mut Arena::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let recording = device
        .record(&Arc::new(plan))
        .unwrap_or_else(|error| panic!("{error}"));
    let readback = recording.plan.readback.as_ref();
    let pending = submit(device, &recording, &[], readback).expect("a live device");
    let bytes = device.finish(pending).expect("a live device");
    let outputs = recording
        .plan
        .outputs
        .iter()
        .map(|output| {
            bytes[output.offset..output.offset + output.desc.n_bytes()]
                .chunks_exact(4)
                .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                .collect()
        })
        .collect();
    let inouts = inout_tensors
        .iter()
        .zip(inouts)
        .map(|(tensor, (_, bytes))| {
            let mut out = vec![0; bytes.len()];
            device
                .read(&tensor.buffers[0], 0, &mut out)
                .expect("in range");
            out
        })
        .collect();
    (outputs, inouts)
}

/// Runs the reference of an op.
fn reference<'a>(
    op: &dyn Op,
    inputs: &'a [Operand],
    inouts: &'a mut [Operand],
    outputs: &'a [TensorDesc],
) -> Vec<RefOutput<'a>> {
    let mut args = RefArgs {
        inputs: inputs
            .iter()
            .map(|(desc, bytes)| RefTensor { desc, bytes })
            .collect(),
        inouts: inouts
            .iter_mut()
            .map(|(desc, bytes)| RefTensorMut::new(desc, bytes))
            .collect(),
        outputs: outputs.iter().map(RefOutput::new).collect(),
    };
    op.reference(&mut args);
    args.outputs
}

fn descs(operands: &[Operand]) -> Vec<&TensorDesc> {
    operands.iter().map(|(desc, _)| desc).collect()
}

/// Runs an op that has one output on a device and holds it against the reference; returns the output.
#[track_caller]
fn check<O: Op + Clone + 'static>(device: &dyn Device, op: &O, inputs: &[Operand]) -> Vec<f32> {
    let input_descs = descs(inputs);
    let output_descs = op
        .outputs(&input_descs, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let tolerance = op.tolerance(Operands {
        inputs: &input_descs,
        inouts: &[],
        outputs: &output_descs.iter().collect::<Vec<_>>(),
    });
    let expected = reference(op, inputs, &mut [], &output_descs).remove(0);
    let found = run(device, op, inputs, &[]).0.remove(0);
    assert_eq!(found.len(), expected.values.len(), "{op}: length");
    let n = output_descs[0].last();
    for row in 0..output_descs[0].rows() {
        let (mut error, mut square) = (0.0, 0.0);
        for (i, &z) in found.iter().enumerate().skip(row * n).take(n) {
            let (z, y) = (f64::from(z), expected.values[i]);
            if y.is_nan() {
                continue;
            }
            let bound = tolerance.tau * expected.magnitudes[i] + tolerance.alpha;
            assert!(
                (z - y).abs() <= bound,
                "{op}: row {row}, channel {}: {z} instead of {y}, off by {:e}, bound {bound:e}",
                i % n,
                (z - y).abs(),
            );
            error += (z - y).powi(2);
            square += y.powi(2).max(expected.norms[i].powi(2));
        }
        assert!(
            n < 32 || error <= tolerance.nmse * square,
            "{op}: row {row}: nmse {:e}",
            error / square
        );
    }
    found
}

#[test]
fn rope_equals_the_reference() {
    let mut numbers = Numbers::new(1);
    for device in devices() {
        for (mode, head_dim, n_rot) in [
            (RopeMode::Norm, 64, 64),
            (RopeMode::Neox, 64, 64),
            (RopeMode::Norm, 7, 4),
            (RopeMode::Neox, 96, 32),
            (RopeMode::Neox, 5, 2),
        ] {
            let n_coarse = 3;
            let table: Vec<f32> = (0..FINE)
                .chain((0..n_coarse).map(|c| c * FINE))
                .flat_map(|p| (0..n_rot / 2).map(move |j| p as f64 / 1.5_f64.powi(j as i32)))
                .flat_map(|angle| [angle.cos() as f32, angle.sin() as f32])
                .collect();
            let positions = [0, 1, 255, 256, 700, 767, -1, 768];
            let (n_tokens, n_heads) = (positions.len(), 3);
            // The first heads of a fused projection with two more.
            let (fused, bytes) = f32s(
                &[n_tokens, n_heads + 2, head_dim],
                &numbers.take(n_tokens * (n_heads + 2) * head_dim),
            );
            let x = fused.narrow(1, 1, n_heads).unwrap();
            let op = Rope { mode, n_rot };
            let inputs = [
                (x, bytes),
                i32s(&[n_tokens], &positions),
                f32s(&[FINE + n_coarse, n_rot / 2, 2], &table),
            ];
            check(&device, &op, &inputs);
        }
    }
}

#[test]
fn scattered_rows_equal_the_reference() {
    for device in devices() {
        let x = f32s(&[4, 33], &Numbers::new(2).take(4 * 33));
        let inputs = [x, i32s(&[4], &[6, -1, 0, 7])];
        let mut inouts = [f32s(&[7, 33], &Numbers::new(3).take(7 * 33))];
        let found = run(&device, &ScatterRows, &inputs, &inouts).1;
        reference(&ScatterRows, &inputs, &mut inouts, &[]);
        assert_eq!(found[0], inouts[0].1, "all bytes");
    }
}

/// Rows whose encoding is decided by rules: non-finite, tiny, huge, constant, ties.
fn hard_rows(n: usize) -> Vec<Vec<f32>> {
    let mut numbers = Numbers::new(4);
    let mut row = |f: &dyn Fn(usize, f32) -> f32| -> Vec<f32> {
        (0..n).map(|i| f(i, numbers.next())).collect()
    };
    vec![
        row(&|_, _| 0.0),
        row(&|i, _| if i % 3 == 0 { -0.0 } else { 0.0 }),
        row(&|_, _| 1.0),
        row(&|_, _| -3.5),
        row(&|i, x| if i % 5 == 1 { f32::NAN } else { x }),
        row(&|i, x| if i % 7 == 2 { f32::INFINITY } else { x }),
        row(&|i, x| if i == 3 { f32::NEG_INFINITY } else { x }),
        row(&|_, x| x * 1e6),
        row(&|_, x| x * 1e30 - 1e29),
        row(&|_, x| x * 1e-5),
        row(&|_, x| x * 2e-7),
        row(&|_, x| x * 1e-30),
        row(&|i, _| i as f32 - 16.0),
        row(&|i, _| if i % 2 == 0 { 8.0 } else { -8.0 }),
        row(&|i, _| 65_504.0 + i as f32),
        row(&|i, _| 0.000_061 + i as f32 * 1e-8),
    ]
}

#[test]
fn cache_writes_equal_the_reference() {
    for device in devices() {
        for (&dtype, head_dim) in CACHE_TYPES
            .iter()
            .zip([40, 63, 64, 96, 40, 72, 96, 32].iter().cycle())
        {
            let (n_heads, n_pages) = (2, 3);
            let hard = hard_rows(*head_dim);
            let n_tokens = 20;
            let mut numbers = Numbers::new(5);
            let mut values = Vec::new();
            for row in 0..n_tokens * n_heads {
                match hard.get(row) {
                    Some(hard) => values.extend(hard),
                    None => values.extend(numbers.take(*head_dim)),
                }
            }
            // Written cells in no order, two skipped tokens.
            let mut slots: Vec<i32> = (0..n_tokens as i32).map(|t| (t * 101 + 7) % 192).collect();
            slots[18] = -1;
            slots[19] = 192;
            let inputs = [
                f32s(&[n_tokens, n_heads, *head_dim], &values),
                i32s(&[n_tokens], &slots),
            ];
            let cache = TensorDesc::pages(dtype, n_pages, n_heads, *head_dim);
            let mut inouts = [(cache.clone(), vec![0xAA; cache.n_bytes()])];
            let found = run(&device, &KvWrite, &inputs, &inouts).1.remove(0);
            reference(&KvWrite, &inputs, &mut inouts, &[]);
            let expected = &inouts[0].1;

            // A code may differ by one where the unrounded one lies on a border.
            let n_words = CacheRow::new(dtype, *head_dim).n_words();
            let n_differ = found.iter().zip(expected).filter(|(f, e)| f != e).count();
            assert!(
                n_differ * 1000 <= n_tokens * n_heads * n_words * 4,
                "{dtype}: {n_differ} bytes differ, first at {:?}",
                found.iter().zip(expected).position(|(f, e)| f != e)
            );
            for (row, (f, e)) in found
                .chunks(n_words * 4)
                .zip(expected.chunks(n_words * 4))
                .enumerate()
                .filter(|(_, (f, e))| f != e)
            {
                let (f, e) = (decode(&cache, f), decode(&cache, e));
                let largest = e.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                for (f, e) in f.iter().zip(&e) {
                    assert!(
                        (f - e).abs() <= largest / 7.0,
                        "{dtype}: row {row}: {f} instead of {e}"
                    );
                }
            }
        }
    }
}

/// The elements of a cache row.
fn decode(cache: &TensorDesc, words: &[u8]) -> Vec<f32> {
    let cell = CacheRow::new(cache.dtype, cache.last());
    let n = cell.padded_elems();
    let mut blocks = vec![0; cache.dtype.row_bytes(n).expect("whole blocks")];
    cell.unpack(words, &mut blocks);
    let mut row = vec![0.0; n];
    format::decode_row(cache.dtype, &blocks, &mut row);
    row
}

/// A model's attention and the caches of some sequences.
#[derive(Clone, Debug)]
struct Case {
    n_heads: usize,
    n_kv_heads: usize,
    dk: usize,
    dv: usize,
    k: DType,
    v: DType,
    op: Attention,
    /// Cells before the step and tokens in it, of each sequence.
    seqs: Vec<(usize, usize)>,
    /// Padding tokens at the end.
    n_padding: usize,
}

impl Case {
    /// Grouped heads of 64 channels in f16 caches.
    fn new(max_len: usize, seqs: &[(usize, usize)]) -> Self {
        Self {
            n_heads: 6,
            n_kv_heads: 2,
            dk: 64,
            dv: 64,
            k: DType::F16,
            v: DType::F16,
            op: Attention {
                scale: 0.5,
                softcap: 0.0,
                window: 0,
                max_len,
                shared_kv: None,
            },
            seqs: seqs.to_vec(),
            n_padding: 0,
        }
    }

    fn types(self, k: DType, v: DType) -> Self {
        Self { k, v, ..self }
    }

    fn heads(self, n_heads: usize, n_kv_heads: usize, dk: usize, dv: usize) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            dk,
            dv,
            ..self
        }
    }

    fn window(mut self, window: usize) -> Self {
        self.op.window = window;
        self
    }

    fn softcap(mut self, softcap: f32) -> Self {
        self.op.softcap = softcap;
        self
    }

    fn padding(self, n_padding: usize) -> Self {
        Self { n_padding, ..self }
    }

    /// The operands. Pages lie in no order, and whatever no token sees is NaN.
    fn inputs(&self) -> Vec<Operand> {
        let mut numbers = Numbers::new(6);
        let max_pages = self.op.max_len.div_ceil(PAGE) + 1;
        let n_pages = self.seqs.len() * max_pages + 3;
        let page_of = |index: usize| (index * 7 + 2) % n_pages;
        assert!(
            !n_pages.is_multiple_of(7),
            "7 must not divide {n_pages}, or pages repeat"
        );
        let mut page_table = vec![i32::MAX; self.seqs.len() * max_pages];
        let mut seq_rows = Vec::new();
        let mut positions = Vec::new();
        for (seq, &(before, new)) in self.seqs.iter().enumerate() {
            for page in 0..(before + new).div_ceil(PAGE) {
                page_table[seq * max_pages + page] = page_of(seq * max_pages + page) as i32;
            }
            for position in before..before + new {
                seq_rows.push(seq as i32);
                positions.push(position as i32);
            }
        }
        seq_rows.extend(vec![-1; self.n_padding]);
        positions.extend(vec![-1; self.n_padding]);
        let mut cache = |dtype, dim| {
            let desc = TensorDesc::pages(dtype, n_pages, self.n_kv_heads, dim);
            let mut bytes = vec![0xFF; desc.n_bytes()];
            for (seq, &(before, new)) in self.seqs.iter().enumerate() {
                let first = match self.op.window {
                    0 => 0,
                    window => (before + 1).saturating_sub(window),
                };
                for cell in first..before + new {
                    let page = page_table[seq * max_pages + cell / PAGE] as usize;
                    for head in 0..self.n_kv_heads {
                        RefTensorMut::new(&desc, &mut bytes).set_cell(
                            (page * self.n_kv_heads + head) * PAGE + cell % PAGE,
                            &numbers.take(dim),
                        );
                    }
                }
            }
            (desc, bytes)
        };
        let (k, v) = (cache(self.k, self.dk), cache(self.v, self.dv));
        let n_tokens = seq_rows.len();
        // Queries are the first heads of a fused projection.
        let (fused, q_bytes) = f32s(
            &[n_tokens, (self.n_heads + 1) * self.dk],
            &numbers.take(n_tokens * (self.n_heads + 1) * self.dk),
        );
        let q = fused
            .narrow(1, self.dk, self.n_heads * self.dk)
            .and_then(|q| q.reshape([n_tokens, self.n_heads, self.dk]))
            .expect("the view exists");
        vec![
            (q, q_bytes),
            k,
            v,
            i32s(&[self.seqs.len(), max_pages], &page_table),
            i32s(&[n_tokens], &seq_rows),
            i32s(&[n_tokens], &positions),
        ]
    }
}

#[track_caller]
fn check_case(device: &dyn Device, case: &Case) -> Vec<f32> {
    check(device, &case.op, &case.inputs())
}

#[test]
fn decoding_equals_the_reference() {
    for device in devices() {
        for case in [
            Case::new(1, &[(0, 1)]),
            Case::new(64, &[(63, 1)]),
            Case::new(512, &[(0, 1), (64, 1), (300, 1), (129, 1)]).padding(2),
            // Several splits, most of them empty for some.
            Case::new(2048, &[(1500, 1), (3, 1), (700, 1)]),
            Case::new(2048, &[(1999, 1), (40, 1)]).window(100),
            Case::new(256, &[(200, 1)]).window(1),
            Case::new(256, &[(200, 1), (90, 1)]).softcap(2.0),
            // One head, odd groups, more rows than a tile, head sizes that differ and are no multiple of 32.
            Case::new(256, &[(200, 1)]).heads(1, 1, 64, 64),
            Case::new(256, &[(70, 1), (99, 1)]).heads(10, 2, 40, 72),
            Case::new(128, &[(100, 1)]).heads(4, 1, 256, 256),
        ] {
            check_case(&device, &case);
        }
    }
}

#[test]
fn latent_attention_equals_the_reference() {
    for device in devices() {
        let case = Case::new(128, &[(100, 1)]).heads(8, 1, 576, 512);
        check_case(&device, &case);
        let case = Case::new(128, &[(100, 1)]).heads(2, 2, 576, 576);
        check_case(&device, &case);
    }
}

#[test]
fn prompts_equal_the_reference() {
    for device in devices() {
        for case in [
            Case::new(64, &[(0, 37)]),
            // Tiles that straddle sequences, one of them long past its first page.
            Case::new(256, &[(0, 1), (10, 3), (130, 21), (0, 5)]).padding(3),
            Case::new(256, &[(0, 70)]).heads(2, 2, 64, 64),
            Case::new(256, &[(60, 1), (5, 1), (61, 1), (0, 19)])
                .heads(3, 3, 32, 64)
                .window(16),
        ] {
            check_case(&device, &case);
        }
    }
}

#[test]
fn every_cache_type_is_decoded() {
    // Decoding does not depend on the geometry, and each pair of types is a kernel to compile.
    let device = &devices()[0];
    for (i, &k) in CACHE_TYPES.iter().enumerate() {
        let v = CACHE_TYPES[(i + 3) % CACHE_TYPES.len()];
        let case = Case::new(128, &[(80, 1), (7, 2)]).heads(3, 1, 96, 96);
        check_case(device, &case.types(k, v));
    }
}

#[test]
fn rows_do_not_depend_on_their_company() {
    for device in devices() {
        let seqs = [(300, 2), (5, 1), (64, 3), (1000, 1)];
        let together = Case::new(1024, &seqs).padding(1);
        let inputs = together.inputs();
        let found = check(&device, &together.op, &inputs);
        let n_tokens = inputs[4].0.shape[0];
        let n = together.n_heads * together.dv;
        for token in 0..n_tokens {
            let alone: Vec<Operand> = inputs
                .iter()
                .enumerate()
                .map(|(i, (desc, bytes))| match i {
                    0 | 4 | 5 => (desc.narrow(0, token, 1).unwrap(), bytes.clone()),
                    _ => (desc.clone(), bytes.clone()),
                })
                .collect();
            let row = run(&device, &together.op, &alone, &[]).0.remove(0);
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                bits(&row),
                bits(&found[token * n..(token + 1) * n]),
                "token {token}"
            );
        }
    }
}

#[test]
fn what_a_token_does_not_see_does_not_reach_it() {
    for device in devices() {
        // One prompt of four tokens in a tile; the cell of the third holds NaN.
        let case = Case::new(64, &[(0, 4)])
            .heads(1, 1, 32, 32)
            .types(DType::F32, DType::F32);
        let mut inputs = case.inputs();
        let page = i32::from_le_bytes(inputs[3].1[..4].try_into().unwrap()) as usize;
        for cache in [1, 2] {
            let at = (page * PAGE + 2) * 32 * 4;
            inputs[cache].1[at..at + 128].fill(0xFF);
        }
        let found = check(&device, &case.op, &inputs);
        assert!(
            found[..64].iter().all(|v| v.is_finite()),
            "the first two tokens do not see it"
        );
    }
}

#[test]
fn odd_head_sizes_are_refused() {
    let device = &devices()[0];
    let inputs = Case::new(64, &[(0, 1)]).heads(2, 1, 62, 64).inputs();
    let input_descs = descs(&inputs);
    let op = Case::new(64, &[]).op;
    let outputs = op.outputs(&input_descs, &[]).unwrap();
    let error = op
        .launches(
            Operands {
                inputs: &input_descs,
                inouts: &[],
                outputs: &[&outputs[0]],
            },
            device.caps(),
        )
        .unwrap_err();
    assert!(error.to_string().contains("multiple of 4"), "{error}");
}
