//! Weights in tiles: `gather_rows`, `matmul`, `quantize_q8` and `matmul_q8` against their references.
//!
//! Every weight type is decoded on the device; products run with the launches of the device's own class and those of a
//! discrete GPU, whose kernels differ.
#![allow(clippy::unwrap_used, reason = "a failed helper fails the test")]

use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::{Device, submit};
use gemel_core::dtype::WEIGHT_TYPES;
use gemel_core::format::scales;
use gemel_core::format::tile8::TILE_ROWS;
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{DeviceClass, Op, Operands, Tolerance};
use gemel_core::ops::gather_rows::GatherRows;
use gemel_core::ops::matmul::{FEW_TOKENS, Factors, Matmul};
use gemel_core::ops::matmul_q8::{self, MatmulQ8};
use gemel_core::ops::quantize_q8::QuantizeQ8;
use gemel_core::plan::{self, Arena};
use gemel_core::reference::{RefArgs, RefOutput, RefTensor};
use gemel_core::tensor::{Layout, TensorDesc};
use gemel_wgpu::{WgpuDevice, WgpuOptions};

fn open(class: Option<DeviceClass>) -> WgpuDevice {
    let options = WgpuOptions {
        class,
        ..WgpuOptions::new("wgpu")
    };
    WgpuDevice::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// One device a class.
fn devices() -> Vec<WgpuDevice> {
    [None, Some(DeviceClass::Discrete)].map(open).into()
}

/// A stream of numbers that look random and depend on the seed alone.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 40
    }

    /// Uniform in -1 .. 1.
    fn next(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// An operand: as the reference sees it, and as the device does.
#[derive(Clone)]
struct Operand {
    desc: TensorDesc,
    bytes: Vec<u8>,
    device_desc: TensorDesc,
    /// One buffer, or one a window.
    device_bytes: Vec<Vec<u8>>,
}

impl Operand {
    fn new(desc: TensorDesc, bytes: Vec<u8>) -> Self {
        Self {
            device_desc: desc.clone(),
            device_bytes: vec![bytes.clone()],
            desc,
            bytes,
        }
    }

    fn f32s(shape: &[usize], numbers: &mut Numbers) -> Self {
        let n = shape.iter().product();
        let values = (0..n).flat_map(|_| numbers.next().to_le_bytes()).collect();
        Self::new(TensorDesc::f32(shape), values)
    }

    fn i32s(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(TensorDesc::i32([values.len()]), bytes)
    }

    /// A weight of random codes and finite scales, in windows of `window_rows` if that is not 0.
    fn weight(dtype: DType, shape: [usize; 2], window_rows: usize, numbers: &mut Numbers) -> Self {
        let [n_rows, n_cols] = shape;
        let row_bytes = dtype.row_bytes(n_cols).unwrap();
        let mut bytes: Vec<u8> = if dtype == DType::F32 {
            (0..n_rows * n_cols)
                .flat_map(|_| numbers.next().to_le_bytes())
                .collect()
        } else {
            (0..n_rows * row_bytes)
                .map(|_| numbers.bits() as u8)
                .collect()
        };
        if dtype.is_block() {
            scales::make_finite(dtype, &mut bytes);
        } else if dtype != DType::F32 {
            // Exponents of small numbers.
            for element in bytes.chunks_exact_mut(2) {
                element[1] = element[1] & 0x83 | 0x38;
            }
        }
        let mut device_desc = TensorDesc::weight(dtype, shape, Layout::Tile8);
        device_desc.window_rows = window_rows;
        let device_bytes = device_desc
            .windows()
            .into_iter()
            .map(|(first, n)| {
                let tiles = device_desc.tiles(n);
                let mut packed = vec![0; tiles.packed_bytes()];
                let rows = &bytes[first * row_bytes..(first + n) * row_bytes];
                for (rows, group) in rows
                    .chunks(TILE_ROWS * row_bytes)
                    .zip(packed.chunks_exact_mut(tiles.group_bytes()))
                {
                    tiles.pack_rows(rows, group);
                }
                packed
            })
            .collect();
        Self {
            desc: TensorDesc::weight(dtype, shape, Layout::Rows),
            bytes,
            device_desc,
            device_bytes,
        }
    }

    /// Some columns of this operand.
    fn narrow(&self, axis: usize, start: usize, len: usize) -> Self {
        Self {
            desc: self.desc.narrow(axis, start, len).unwrap(),
            device_desc: self.device_desc.narrow(axis, start, len).unwrap(),
            ..self.clone()
        }
    }
}

/// Runs an op on a device; returns the words of each output.
fn run<O: Op + Clone + 'static>(device: &dyn Device, op: &O, inputs: &[Operand]) -> Vec<Vec<u32>> {
    let mut graph = Graph::new();
    let ids: Vec<_> = inputs
        .iter()
        .map(|operand| {
            let buffers = operand
                .device_bytes
                .iter()
                .map(|bytes| {
                    let buffer = device.alloc(bytes.len() as u64, "operand").unwrap();
                    device.write(&buffer, 0, bytes).unwrap();
                    buffer
                })
                .collect();
            let desc = operand.device_desc.clone();
            graph.bind("operand", &Tensor { desc, buffers })
        })
        .collect();
    let outputs = graph
        .apply_multi("op", op.clone(), &ids, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    for output in outputs {
        graph.output(output);
    }
    let plan = plan::compile("op", graph, device, &mut Arena::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let recording = device
        .record(&Arc::new(plan))
        .unwrap_or_else(|error| panic!("{error}"));
    let pending = submit(device, &recording, &[], recording.plan.readback.as_ref()).unwrap();
    let bytes = device.finish(pending).unwrap();
    let words = |output: &plan::Output| {
        bytes[output.offset..output.offset + output.desc.n_bytes()]
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    recording.plan.outputs.iter().map(words).collect()
}

/// Descriptions of the outputs of an op.
fn output_descs(op: &dyn Op, inputs: &[Operand]) -> Vec<TensorDesc> {
    let descs: Vec<&TensorDesc> = inputs.iter().map(|operand| &operand.desc).collect();
    op.outputs(&descs, &[]).unwrap()
}

/// Runs the reference of an op.
fn reference<'a>(
    op: &dyn Op,
    inputs: &'a [Operand],
    outputs: &'a [TensorDesc],
) -> (Vec<RefOutput<'a>>, Tolerance) {
    let descs: Vec<&TensorDesc> = inputs.iter().map(|operand| &operand.desc).collect();
    let output_refs: Vec<&TensorDesc> = outputs.iter().collect();
    let tolerance = op.tolerance(Operands {
        inputs: &descs,
        inouts: &[],
        outputs: &output_refs,
    });
    let mut args = RefArgs {
        inputs: inputs
            .iter()
            .map(|operand| RefTensor {
                desc: &operand.desc,
                bytes: &operand.bytes,
            })
            .collect(),
        inouts: Vec::new(),
        outputs: outputs.iter().map(RefOutput::new).collect(),
    };
    op.reference(&mut args);
    (args.outputs, tolerance)
}

/// Compares a device with the reference.
fn check<O: Op + Clone + 'static>(device: &dyn Device, op: &O, inputs: &[Operand], label: &str) {
    let descs = output_descs(op, inputs);
    let (expected, tolerance) = reference(op, inputs, &descs);
    for (words, expected) in run(device, op, inputs).iter().zip(&expected) {
        assert_eq!(words.len(), expected.values.len(), "{label}: length");
        for (i, &word) in words.iter().enumerate() {
            let value = match expected.desc.dtype {
                DType::F32 => f64::from(f32::from_bits(word)),
                _ => f64::from(word),
            };
            let bound = tolerance.tau * expected.magnitudes[i] + tolerance.alpha;
            let error = (value - expected.values[i]).abs();
            assert!(
                error <= bound,
                "{label} on {}: element {i} is {value}, expected {} within {bound:e}",
                device.caps().class.name(),
                expected.values[i]
            );
        }
    }
}

#[test]
fn every_weight_type_decodes() {
    let device = open(None);
    let mut numbers = Numbers::new(1);
    let ids = Operand::i32s(&[18, 0, -1, 7, 8, 19, 3, 12, i32::MIN, 5, 9, 10, 1, i32::MAX]);
    for &dtype in WEIGHT_TYPES {
        let n_cols = if dtype.is_block() {
            3 * dtype.block_elems()
        } else {
            37
        };
        let w = Operand::weight(dtype, [19, n_cols], 0, &mut numbers);
        let label = format!("gather_rows of {dtype}");
        check(
            &device,
            &GatherRows { scale: 1.0 },
            &[w, ids.clone()],
            &label,
        );
    }
}

#[test]
fn rows_are_gathered_from_windows_and_activations() {
    let device = open(None);
    let mut numbers = Numbers::new(2);
    let op = GatherRows { scale: 25.3 };
    let ids = Operand::i32s(&[20, 3, 15, 16, -1, 7, 8, 21, 0]);
    let w = Operand::weight(DType::Q6_K, [21, 512], 8, &mut numbers);
    assert_eq!(w.device_bytes.len(), 3, "three windows");
    check(&device, &op, &[w, ids.clone()], "from windows");
    let x = Operand::f32s(&[21, 30], &mut numbers).narrow(1, 3, 23);
    check(&device, &op, &[x, ids], "from a view of activations");
}

#[test]
fn products_equal_the_reference() {
    let mut numbers = Numbers::new(3);
    for device in devices() {
        // Rows that fill no tile, tokens on both sides of every kernel's limit: each kernel takes seconds to compile.
        for (dtype, n_cols, shapes) in [
            (DType::F32, 45, &[(3, 70), (FEW_TOKENS + 1, 9)][..]),
            (
                DType::Q8_0,
                96,
                &[(1, 43), (3, 8), (FEW_TOKENS + 1, 66), (40, 9)],
            ),
            (DType::IQ2_XS, 256, &[(1, 43)]),
            (DType::MXFP4, 160, &[(1, 43)]),
        ] {
            for &(n_tokens, n_rows) in shapes {
                let x = Operand::f32s(&[n_tokens, n_cols], &mut numbers);
                let w = Operand::weight(dtype, [n_rows, n_cols], 0, &mut numbers);
                let label = format!("matmul of {dtype}, {n_tokens} tokens, {n_rows} rows");
                let op = Matmul {
                    scale: 1.0,
                    factors: Factors::Exact,
                };
                check(&device, &op, &[x, w], &label);
            }
        }
    }
}

#[test]
fn products_take_views_bias_scale_and_windows() {
    let mut numbers = Numbers::new(4);
    for device in devices() {
        let x = Operand::f32s(&[2, 3, 40], &mut numbers);
        let bias = Operand::f32s(&[50], &mut numbers);
        let op = Matmul {
            scale: -0.3,
            factors: Factors::Exact,
        };
        // Four-aligned and unaligned columns of some heads of each token.
        for start in [4, 5] {
            let view = x.narrow(1, 1, 2).narrow(2, start, 32);
            let w = Operand::weight(DType::Q5_1, [50, 32], 16, &mut numbers);
            assert_eq!(w.device_bytes.len(), 4, "four windows");
            let label = format!("matmul from column {start}");
            check(&device, &op, &[view, w, bias.clone()], &label);
        }
    }
}

/// Tokens `first ..` of the outputs of a product, alone and among others, have the same bits.
fn check_rows<O: Op + Clone + 'static>(
    device: &dyn Device,
    op: &O,
    tokens: &dyn Fn(usize, usize) -> Vec<Operand>,
    label: &str,
) {
    let all = run(device, op, &tokens(0, FEW_TOKENS));
    let n_out = all[0].len() / FEW_TOKENS;
    for (first, n) in [(0, 1), (7, 1), (2, 7)] {
        let some = run(device, op, &tokens(first, n));
        assert_eq!(
            some[0],
            all[0][first * n_out..(first + n) * n_out],
            "{label}: tokens {first}+{n} on {}",
            device.caps().class.name()
        );
    }
}

#[test]
fn the_bits_of_a_token_do_not_depend_on_the_others() {
    let mut numbers = Numbers::new(5);
    for device in devices() {
        let x = Operand::f32s(&[FEW_TOKENS, 768], &mut numbers);
        let w = Operand::weight(DType::Q4_K, [24, 768], 0, &mut numbers);
        let tokens = |first, n| vec![x.narrow(0, first, n), w.clone()];
        check_rows(
            &device,
            &Matmul {
                scale: 1.0,
                factors: Factors::Exact,
            },
            &tokens,
            "matmul",
        );
        let x = Operand::f32s(&[FEW_TOKENS, 768], &mut numbers);
        let w = Operand::weight(DType::Q6_K, [24, 768], 0, &mut numbers);
        let tokens = |first, n| {
            let [q, s] = quantized(&x);
            vec![q.narrow(0, first, n), s.narrow(0, first, n), w.clone()]
        };
        check_rows(&device, &MatmulQ8 { scale: 1.0 }, &tokens, "matmul_q8");
    }
}

/// What the reference of `quantize_q8` makes of activations.
fn quantized(x: &Operand) -> [Operand; 2] {
    let inputs = [x.clone()];
    let descs = output_descs(&QuantizeQ8, &inputs);
    let (outputs, _) = reference(&QuantizeQ8, &inputs, &descs);
    [&outputs[0], &outputs[1]].map(|output| {
        let mut bytes = vec![0; output.desc.n_bytes()];
        output.store(&mut bytes);
        Operand::new(output.desc.clone(), bytes)
    })
}

#[test]
fn activations_quantise_bit_for_bit() {
    let device = open(None);
    let mut numbers = Numbers::new(6);
    let mut values: Vec<f32> = (0..9 * 128)
        .map(|i| numbers.next() * 10.0_f32.powi(i / 32 * 2 - 36))
        .collect();
    values[5] = f32::NAN;
    values[140] = f32::INFINITY;
    values[300] = f32::NEG_INFINITY;
    values[640..672].fill(0.0);
    // Every code, and every border between two.
    for (i, value) in values[700..832].iter_mut().enumerate() {
        *value = (i as f32 - 64.0) * 0.5;
    }
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = Operand::new(TensorDesc::f32([9, 128]), bytes);
    check(&device, &QuantizeQ8, &[x.narrow(1, 32, 64)], "aligned");
    check(&device, &QuantizeQ8, &[x.narrow(1, 29, 96)], "unaligned");
    check(&device, &QuantizeQ8, &[x], "all");
}

#[test]
fn integer_products_equal_the_reference() {
    let mut numbers = Numbers::new(7);
    for device in devices() {
        let is_gpu = device.caps().class == DeviceClass::Discrete;
        for &dtype in matmul_q8::TYPES {
            let n_cols = 3 * dtype.block_elems();
            // The tiled kernel takes a type's pieces as `matmul` does: one type suffices.
            let shapes: &[(usize, usize)] = match (is_gpu, dtype) {
                (true, DType::Q4_1) => &[(1, 43), (FEW_TOKENS + 1, 66)],
                (true, _) => &[(1, 43)],
                (false, _) => &[(3, 66)],
            };
            for &(n_tokens, n_rows) in shapes {
                let x = Operand::f32s(&[n_tokens, n_cols], &mut numbers);
                let [q, s] = quantized(&x);
                let w = Operand::weight(dtype, [n_rows, n_cols], 48, &mut numbers);
                let bias = Operand::f32s(&[n_rows], &mut numbers);
                let label = format!("matmul_q8 of {dtype}, {n_tokens} tokens, {n_rows} rows");
                let op = MatmulQ8 { scale: 1.5 };
                check(&device, &op, &[q, s, w, bias], &label);
            }
        }
    }
}
