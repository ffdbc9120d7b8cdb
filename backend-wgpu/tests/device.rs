//! The device contract on the default adapter: plans against the reference, limits, errors.
//!
//! A machine without an adapter fails these tests with what to install; `scripts/test.sh` installs a software one.

use std::sync::Arc;

use gemel_core::device::{Device, Pending, Recording, Upload, submit};
use gemel_core::graph::{Graph, Tensor, ValueId};
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::plan::{self, Arena, Plan};
use gemel_core::reference::ReferenceDevice;
use gemel_core::tensor::TensorDesc;
use gemel_wgpu::{WgpuDevice, WgpuOptions};

fn options() -> WgpuOptions {
    WgpuOptions::new("wgpu")
}

fn open(options: &WgpuOptions) -> WgpuDevice {
    WgpuDevice::open(options).unwrap_or_else(|error| panic!("{error}"))
}

/// Values in -1 .. 1 that look random and depend on the seed alone.
fn values(n: usize, seed: u64) -> Vec<f32> {
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

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|w| f32::from_le_bytes(w.try_into().unwrap()))
        .collect()
}

/// A tensor with these contents.
fn tensor(device: &dyn Device, shape: &[usize], values: &[f32]) -> Tensor {
    let buffer = device.alloc(values.len() as u64 * 4, "tensor").unwrap();
    device.write(&buffer, 0, &bytes(values)).unwrap();
    Tensor {
        desc: TensorDesc::f32(shape),
        buffers: vec![buffer],
    }
}

/// Plans and records a graph.
fn record(device: &dyn Device, label: &str, graph: Graph) -> Recording {
    let plan = compile(device, label, graph);
    device
        .record(&plan)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn compile(device: &dyn Device, label: &str, graph: Graph) -> Arc<Plan> {
    Arc::new(plan::compile(label, graph, device, &mut Arena::default()).unwrap())
}

/// Runs a recording once and returns its read-back.
fn run(device: &dyn Device, recording: &Recording, uploads: &[Upload<'_>]) -> Vec<u8> {
    let pending = start(device, recording, uploads);
    device.finish(pending).unwrap()
}

fn start(device: &dyn Device, recording: &Recording, uploads: &[Upload<'_>]) -> Pending {
    submit(device, recording, uploads, recording.plan.readback.as_ref()).unwrap()
}

/// `rms_norm` of a view that `view` makes of `x`, on a device.
fn norm(
    device: &dyn Device,
    shape: &[usize],
    view: &dyn Fn(&mut Graph, ValueId) -> ValueId,
) -> Vec<f32> {
    let x = tensor(device, shape, &values(shape.iter().product(), 1));
    let mut graph = Graph::new();
    let x = graph.bind("x", &x);
    let x = view(&mut graph, x);
    let n = graph.desc(x).last();
    let w = tensor(device, &[n], &values(n, 2));
    let w = graph.bind("w", &w);
    let y = graph.apply("norm", RmsNorm { eps: 1e-5 }, &[x, w]).unwrap();
    graph.output(y);
    floats(&run(device, &record(device, "norm", graph), &[]))
}

#[track_caller]
fn check_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "length");
    for (i, (z, y)) in found.iter().zip(expected).enumerate() {
        assert!(
            (z - y).abs() <= 1e-5 * y.abs().max(1e-3),
            "[{i}]: {z} instead of {y}"
        );
    }
}

#[test]
fn a_norm_equals_the_reference() {
    let reference = ReferenceDevice::new();
    for checked in [false, true] {
        let device = open(&WgpuOptions {
            checked,
            ..options()
        });
        for shape in [&[1, 1][..], &[3, 7], &[5, 33], &[2, 1757], &[2, 3, 65]] {
            let whole = |_: &mut Graph, x: ValueId| x;
            check_close(
                &norm(&device, shape, &whole),
                &norm(&reference, shape, &whole),
            );
        }
        // Two of four heads of every token, without the first channel.
        let heads = |graph: &mut Graph, x: ValueId| {
            let x = graph.narrow(x, 1, 1, 2).unwrap();
            graph.narrow(x, 2, 1, 30).unwrap()
        };
        let shape = &[3, 4, 31];
        check_close(
            &norm(&device, shape, &heads),
            &norm(&reference, shape, &heads),
        );
    }
}
