//! The small ops against their references: elementwise, casts, norms, and the reductions over a vocabulary.
//!
//! Every case runs the launches of the device's own class and those of a discrete GPU, whose geometry differs.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use gemel_core::DType;
use gemel_core::device::{Device, submit};
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{DeviceClass, Op, Operands};
use gemel_core::ops::add::Add;
use gemel_core::ops::add_rms_norm::AddRmsNorm;
use gemel_core::ops::argmax::Argmax;
use gemel_core::ops::copy_cast::CopyCast;
use gemel_core::ops::glu::{Glu, GluKind};
use gemel_core::ops::mul::Mul;
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::ops::scale::Scale;
use gemel_core::ops::softcap::Softcap;
use gemel_core::ops::softmax_stats::SoftmaxStats;
use gemel_core::ops::top_k_logits::TopKLogits;
use gemel_core::plan::{self, Arena};
use gemel_core::reference::{RefArgs, RefOutput, RefTensor};
use gemel_core::tensor::TensorDesc;
use gemel_wgpu::{WgpuDevice, WgpuOptions};

/// An operand: description and contents.
type Operand = (TensorDesc, Vec<u8>);

/// One device a class, opened once.
fn devices() -> &'static [WgpuDevice] {
    static DEVICES: OnceLock<Vec<WgpuDevice>> = OnceLock::new();
    DEVICES.get_or_init(|| {
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
    })
}

/// Uniform in -1 .. 1, the same for the same seed.
fn uniform(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f32s(shape: &[usize], values: &[f32]) -> Operand {
    assert_eq!(shape.iter().product::<usize>(), values.len(), "{shape:?}");
    (TensorDesc::f32(shape), f32_bytes(values))
}

fn random(shape: &[usize], seed: u64) -> Operand {
    f32s(shape, &uniform(shape.iter().product(), seed))
}

/// Elements `start .. start + len` of an axis of an operand.
fn narrow((desc, bytes): Operand, axis: usize, start: usize, len: usize) -> Operand {
    let view = desc.narrow(axis, start, len);
    (view.expect("the view exists"), bytes)
}

/// What an element of an output is, as a number that holds all of them.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match *bytes {
        [a, b, c, d] if dtype == DType::I32 => f64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        [a, b] if dtype == DType::BF16 => {
            f64::from(f32::from_bits(u32::from(u16::from_le_bytes([a, b])) << 16))
        }
        [a, b] => f16(u16::from_le_bytes([a, b])),
        _ => panic!("elements of {dtype}"),
    }
}

/// The value of an f16.
fn f16(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f64::from(bits & 1023) / 1024.0;
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// Runs an op on a device: the numbers of each output.
fn run(device: &WgpuDevice, op: &(impl Op + Clone + 'static), inputs: &[Operand]) -> Vec<Vec<f64>> {
    let mut graph = Graph::new();
    let ids: Vec<_> = inputs
        .iter()
        .map(|(desc, bytes)| {
            let n_bytes = bytes.len().next_multiple_of(4);
            let mut padded = bytes.clone();
            padded.resize(n_bytes, 0xff);
            let buffer = device
                .alloc(n_bytes as u64, "operand")
                .expect("memory for an operand");
            device
                .write(&buffer, 0, &padded)
                .expect("the buffer holds it");
            let tensor = Tensor {
                desc: desc.clone(),
                buffers: vec![buffer],
            };
            graph.bind("operand", &tensor)
        })
        .collect();
    let outputs = graph
        .apply_multi("op", op.clone(), &ids, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    for &output in &outputs {
        graph.output(output);
    }
    let plan = plan::compile("case", graph, device, &mut Arena::default())
        .unwrap_or_else(|error| panic!("{op}: {error}"));
    let plan = Arc::new(plan);
    let recording = device
        .record(&plan)
        .unwrap_or_else(|error| panic!("{op}: {error}"));
    let runs = [(); 2].map(|()| {
        submit(device, &recording, &[], plan.readback.as_ref())
            .and_then(|pending| device.finish(pending))
            .unwrap_or_else(|error| panic!("{op}: {error}"))
    });
    let [bytes, again] = runs;
    assert_eq!(bytes, again, "{op}: two runs give the same bits");
    plan.outputs
        .iter()
        .map(|output| {
            let dtype = output.desc.dtype;
            bytes[output.offset..output.offset + output.desc.n_bytes()]
                .chunks_exact(dtype.block_bytes())
                .map(|element| number(dtype, element))
                .collect()
        })
        .collect()
}

/// Holds an op on every device against its reference.
fn check(what: &str, op: &(impl Op + Clone + 'static), inputs: &[Operand]) {
    let descs: Vec<&TensorDesc> = inputs.iter().map(|(desc, _)| desc).collect();
    let out_descs = op
        .outputs(&descs, &[])
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut args = RefArgs {
        inputs: inputs
            .iter()
            .map(|(desc, bytes)| RefTensor { desc, bytes })
            .collect(),
        inouts: Vec::new(),
        outputs: out_descs.iter().map(RefOutput::new).collect(),
    };
    op.reference(&mut args);
    let out_refs: Vec<&TensorDesc> = out_descs.iter().collect();
    let tolerance = op.tolerance(Operands {
        inputs: &descs,
        inouts: &[],
        outputs: &out_refs,
    });
    for device in devices() {
        let class = device.caps().class.name();
        for (place, (found, expected)) in run(device, op, inputs)
            .iter()
            .zip(&args.outputs)
            .enumerate()
        {
            assert_eq!(found.len(), expected.values.len(), "{what}: elements");
            for (i, (&z, &y)) in found.iter().zip(&expected.values).enumerate() {
                let bound = tolerance.tau * expected.magnitudes[i] + tolerance.alpha;
                // Infinities are equal; so are two NaN.
                let same = z.partial_cmp(&y) == Some(Ordering::Equal) || (z.is_nan() && y.is_nan());
                assert!(
                    same || (z - y).abs() <= bound,
                    "{op} {what}, {class}, output {place}, element {i}: {z}, expected {y} +- {bound:e}"
                );
            }
            let n = out_descs[place].last();
            if n < 32 || tolerance.nmse == 0.0 {
                continue;
            }
            let rows = found.chunks(n).zip(expected.values.chunks(n));
            for (row, ((z, y), s)) in rows.zip(expected.norms.chunks(n)).enumerate() {
                let error: f64 = z.iter().zip(y).map(|(z, y)| (z - y).powi(2)).sum();
                let power: f64 = y.iter().zip(s).map(|(y, s)| y.powi(2).max(s.powi(2))).sum();
                assert!(
                    error <= tolerance.nmse * power || error < 1e-30,
                    "{op} {what}, {class}, row {row}: nmse {:e}",
                    error / power
                );
            }
        }
    }
}

#[test]
fn add_and_mul_repeat_the_second_operand() {
    let cases: &[(&[usize], &[usize])] = &[
        (&[1], &[1]),
        (&[7, 33], &[7, 33]),
        (&[5, 576], &[576]),
        (&[5, 576], &[1]),
        (&[5, 576], &[5, 1]),
        (&[2, 3, 40], &[2, 1, 8]),
        (&[4, 6, 40], &[2, 3, 20]),
        (&[3, 1025], &[3, 41]),
        (&[2, 3, 4, 5], &[4, 1]),
        (&[0, 8], &[8]),
    ];
    for (seed, &(a, b)) in cases.iter().enumerate() {
        let seed = seed as u64;
        let inputs = [random(a, 2 * seed + 1), random(b, 2 * seed + 2)];
        let what = format!("{a:?} with {b:?}");
        check(&what, &Add, &inputs);
        check(&what, &Mul, &inputs);
    }
}

#[test]
fn views_on_both_sides() {
    let wide = || random(&[5, 6, 48], 50);
    let heads = narrow(wide(), 1, 2, 3);
    let part = narrow(narrow(wide(), 1, 1, 3), 2, 16, 31);
    let cases = [
        (
            "heads and contiguous",
            heads.clone(),
            random(&[5, 3, 48], 51),
        ),
        ("heads and a vector", heads.clone(), random(&[48], 52)),
        (
            "a view of heads and of channels",
            part.clone(),
            part.clone(),
        ),
        (
            "contiguous and a view",
            random(&[5, 3, 48], 53),
            heads.clone(),
        ),
        (
            "a view repeated",
            random(&[10, 3, 48], 54),
            narrow(random(&[5, 3, 48], 55), 1, 1, 1),
        ),
    ];
    for (what, a, b) in cases {
        check(what, &Add, &[a.clone(), b.clone()]);
        check(what, &Mul, &[a, b]);
    }
    let scale = Scale {
        scale: -1.5,
        bias: 0.25,
    };
    check("heads", &scale, std::slice::from_ref(&heads));
    check("a view of heads and of channels", &scale, &[part]);
}

#[test]
fn grids_beyond_one_axis() {
    // 70,000 rows of a view: more blocks than one axis of a grid has.
    let x = narrow(random(&[70_000, 3], 60), 1, 1, 2);
    let scale = Scale {
        scale: 2.0,
        bias: 1.0,
    };
    check("many rows", &scale, std::slice::from_ref(&x));
    check("many rows", &Add, &[x.clone(), f32s(&[2], &[0.5, -0.5])]);
    check(
        "many rows",
        &RmsNorm { eps: 1e-6 },
        &[x, f32s(&[2], &[1.0, 2.0])],
    );
}

#[test]
fn softcap_from_tiny_to_huge() {
    let mut x: Vec<f32> = (-300..300).map(|i| i as f32 * 0.37).collect();
    x.extend((-30..38).flat_map(|e| [10f32.powi(e), -1.7 * 10f32.powi(e)]));
    x.extend([0.0, -0.0, f32::MAX, f32::MIN]);
    for cap in [30.0, 1.0, 50.0] {
        check("sweep", &Softcap { cap }, &[f32s(&[x.len()], &x)]);
    }
}

#[test]
fn glu_kinds_over_their_range() {
    let mut gate: Vec<f32> = (-1200..1200).map(|i| i as f32 * 0.011).collect();
    gate.extend((-30..38).flat_map(|e| [10f32.powi(e), -1.7 * 10f32.powi(e)]));
    gate.extend([
        0.0,
        -0.0,
        -80.0,
        -86.9,
        -87.1,
        -88.0,
        -104.0,
        90.0,
        f32::MAX,
        f32::MIN,
    ]);
    let mut up = uniform(gate.len(), 70);
    for (gate, up) in gate.iter().zip(&mut up) {
        // Products must stay in the range of f32.
        if gate.abs() > 1e6 {
            *up = up.signum();
        }
    }
    let n = gate.len();
    for kind in GluKind::ALL {
        let op = Glu { kind };
        check("sweep", &op, &[f32s(&[n], &gate), f32s(&[n], &up)]);
        let both = random(&[7, 2 * 65], 71);
        let halves = [narrow(both.clone(), 1, 0, 65), narrow(both, 1, 65, 65)];
        check("both halves of one tensor", &op, &halves);
    }
}

#[test]
fn casts_of_every_pair() {
    let mut numbers = uniform(201, 80);
    numbers.extend([
        0.0,
        -0.0,
        1.0,
        65504.0,
        65519.9,
        65520.0,
        -65536.0,
        1e-7,
        -6e-8,
        2.9e-8,
        3.0e-8,
        6.2e-5,
        1e9,
        2.147_483_5e9,
        2.147_483_6e9,
        -2.147_483_6e9,
        3e38,
        -1e10,
        1.003_906_2,
        1.011_718_8,
        f32::INFINITY,
        f32::NEG_INFINITY,
        16_777_217.0,
        123_456.79,
    ]);
    numbers.extend(uniform(80, 81).iter().map(|v| v * 1e5));
    let n = numbers.len(); // odd: 305
    assert_eq!(n % 2, 1, "the last word of a 16-bit output is half full");
    let plain = |dtype: DType| -> Operand {
        let bytes = numbers
            .iter()
            .flat_map(|&v| match dtype {
                DType::F32 => v.to_le_bytes().to_vec(),
                DType::I32 => (v as i32).to_le_bytes().to_vec(),
                // The upper half of the bits is a bf16, and as good as any f16.
                _ => v.to_le_bytes()[2..].to_vec(),
            })
            .collect();
        (TensorDesc::new(dtype, [5, n / 5]), bytes)
    };
    let types = [DType::F32, DType::F16, DType::BF16, DType::I32];
    for from in types {
        for to in types {
            let op = CopyCast { to };
            check(&format!("from {from}"), &op, &[plain(from)]);
            let view = narrow(plain(from), 1, 7, 13);
            check(&format!("from a view of {from}"), &op, &[view]);
        }
    }
}

#[test]
fn norms_of_short_and_long_rows() {
    for (t, n) in [
        (1, 1),
        (3, 64),
        (9, 65),
        (40, 128),
        (2, 576),
        (3, 2049),
        (1, 16_384),
    ] {
        let x = random(&[t, n], n as u64);
        let w = random(&[n], n as u64 + 1);
        let r = random(&[t, n], n as u64 + 2);
        let what = format!("{t} rows of {n}");
        check(&what, &RmsNorm { eps: 1e-5 }, &[x.clone(), w.clone()]);
        check(&what, &AddRmsNorm { eps: 1e-5 }, &[x, r, w]);
    }
    let wide = random(&[5, 6, 64], 90);
    let heads = narrow(wide, 1, 1, 3);
    let w = random(&[64], 91);
    check("heads", &RmsNorm { eps: 1e-6 }, &[heads.clone(), w.clone()]);
    let other = random(&[5, 3, 64], 92);
    check(
        "heads",
        &AddRmsNorm { eps: 1e-6 },
        &[other, heads, w.clone()],
    );

    let mut rows = vec![0.0; 3 * 64];
    rows[64..128].fill(1e16);
    rows[128..].fill(-1e-12);
    let x = f32s(&[3, 64], &rows);
    check(
        "zeros, huge, tiny",
        &RmsNorm { eps: 0.0 },
        &[x.clone(), w.clone()],
    );
    check(
        "zeros, huge, tiny",
        &AddRmsNorm { eps: 0.0 },
        &[x.clone(), x, w],
    );
}

/// Rows that are hard to order: ties, signed zeros, infinities, NaN, sorted both ways, a large vocabulary.
fn hard_rows() -> Vec<(&'static str, Operand)> {
    let row = |what, values: Vec<f32>| (what, f32s(&[1, values.len()], &values));
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let mut mostly_nan = vec![nan; 300];
    mostly_nan[251] = -inf;
    mostly_nan[133] = -1e30;
    vec![
        row("one element", vec![-3.0]),
        row("ties", (0..1000).map(|i| (i % 7) as f32).collect()),
        row("constant", vec![2.5; 5000]),
        row("signed zeros", vec![-0.0, 0.0, -1.0, 0.0, -0.0, -1e-30]),
        row("ascending", (0..9001).map(|i| i as f32).collect()),
        row("descending", (0..9001).map(|i| -i as f32).collect()),
        row("mostly nan", mostly_nan),
        row("all -inf", vec![-inf; 77]),
        row("-inf and +inf", vec![-inf, 1.0, inf, 2.0, inf, nan, -inf]),
        ("several rows", random(&[3, 1025], 100)),
        ("a view", narrow(random(&[3, 700], 101), 1, 13, 611)),
        ("a vocabulary", random(&[2, 49_153], 102)),
        ("a large vocabulary", random(&[1, 262_147], 103)),
    ]
}

#[test]
fn argmax_takes_the_first_of_the_largest() {
    for (what, x) in hard_rows() {
        check(what, &Argmax, &[x]);
    }
}

#[test]
fn top_k_in_order() {
    for (what, x) in hard_rows() {
        for k in [1, 5, 40, 256, 1024] {
            if k <= x.0.last() {
                check(what, &TopKLogits { k }, std::slice::from_ref(&x));
            }
        }
    }
}

#[test]
fn softmax_stats_near_and_far() {
    let rows = hard_rows().into_iter();
    let finite = rows.filter(|(what, _)| !what.contains("nan") && !what.contains("inf"));
    for (what, x) in finite {
        check(what, &SoftmaxStats, &[x]);
    }
    let inf = f32::INFINITY;
    let wide: Vec<f32> = uniform(32_000, 110).iter().map(|v| v * 60.0).collect();
    check("logits to 60", &SoftmaxStats, &[f32s(&[2, 16_000], &wide)]);
    check("nothing", &SoftmaxStats, &[f32s(&[2, 3], &[-inf; 6])]);
    check(
        "masked",
        &SoftmaxStats,
        &[f32s(&[1, 6], &[-inf, 3.0, -inf, -inf, 1.0, -1e30])],
    );
    check(
        "the largest and smallest numbers",
        &SoftmaxStats,
        &[f32s(
            &[3, 2],
            &[1e30, -1e30, f32::MIN, f32::MIN, 3e38, 3e38],
        )],
    );
    check("no elements", &SoftmaxStats, &[f32s(&[2, 0], &[])]);
}
