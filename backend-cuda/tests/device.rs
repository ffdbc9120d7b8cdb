//! The device contract on the emulated device: the backend's own code on the pretend driver.
//!
//! Needs a C++ compiler, for the pretend driver and for each kernel (kept in the cache folder).

#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "the helpers belong to tests, and small integers are exact"
)]

use std::fmt;
use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::{Device, Pending, Recording, Upload, submit};
use gemel_core::error::{DeviceError, OpError};
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Table, Tolerance,
};
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::plan::{self, Arena};
use gemel_core::reference::{RefArgs, ReferenceDevice};
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions, LimitOverrides};

fn options() -> CudaOptions {
    CudaOptions::new("cuda-emulated")
}

fn open(options: &CudaOptions) -> CudaDevice {
    open_emulated(options).unwrap_or_else(|error| panic!("{error}"))
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

fn try_record(device: &dyn Device, label: &str, graph: Graph) -> Result<Recording, DeviceError> {
    let plan = plan::compile(label, graph, device, &mut Arena::default()).unwrap();
    device.record(&Arc::new(plan))
}

fn record(device: &dyn Device, label: &str, graph: Graph) -> Recording {
    try_record(device, label, graph).unwrap_or_else(|error| panic!("{error}"))
}

/// The first output of a replay in flight.
fn finish(device: &dyn Device, recording: &Recording, pending: Pending) -> Vec<f32> {
    let bytes = device.finish(pending).unwrap();
    let output = &recording.plan.outputs[0];
    floats(&bytes[output.offset..output.offset + output.desc.n_bytes()])
}

fn start(device: &dyn Device, recording: &Recording, uploads: &[Upload<'_>]) -> Pending {
    submit(device, recording, uploads, recording.plan.readback.as_ref()).unwrap()
}

/// A norm of a step input: the recording, and the input's offset.
fn norm(device: &dyn Device, shape: &[usize]) -> Recording {
    let n = *shape.last().unwrap();
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::F32, shape);
    let w = tensor(device, &[n], &values(n, 2));
    let w = graph.bind("w", &w);
    let y = graph.apply("norm", RmsNorm { eps: 1e-5 }, &[x, w]).unwrap();
    graph.output(y);
    record(device, "norm", graph)
}

fn step<'a>(recording: &'a Recording, bytes: &'a [u8]) -> Upload<'a> {
    let (offset, _) = recording.plan.step_inputs["x"];
    Upload {
        buffer: recording.plan.step_buffer.as_ref().unwrap(),
        offset: offset as u64,
        bytes,
    }
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
fn replays_of_a_recording_equal_the_reference() {
    let (device, reference) = (open(&options()), ReferenceDevice::new());
    for shape in [&[1, 1][..], &[3, 7], &[5, 33], &[2, 1757], &[2, 3, 65]] {
        let n = shape.iter().product();
        let (ours, expected) = (norm(&device, shape), norm(&reference, shape));
        let steps: Vec<Vec<u8>> = (0..2).map(|seed| bytes(&values(n, 10 + seed))).collect();
        // Both are in flight before the first is looked at: the second upload must not overtake the first step.
        let pending: Vec<Pending> = steps
            .iter()
            .map(|step_bytes| start(&device, &ours, &[step(&ours, step_bytes)]))
            .collect();
        assert!(pending[0].ticket < pending[1].ticket, "in order");
        for (step_bytes, pending) in steps.iter().zip(pending) {
            let wanted = start(&reference, &expected, &[step(&expected, step_bytes)]);
            check_close(
                &finish(&device, &ours, pending),
                &finish(&reference, &expected, wanted),
            );
        }
    }
}

#[test]
fn traffic_of_a_step_is_its_inputs_and_outputs() {
    let device = open(&options());
    let recording = norm(&device, &[4, 8]);
    let before = device.traffic();
    let step_bytes = bytes(&values(32, 1));
    let pending = start(&device, &recording, &[step(&recording, &step_bytes)]);
    finish(&device, &recording, pending);
    let after = device.traffic();
    assert_eq!(after.submits - before.submits, 1, "one submission");
    assert_eq!(after.launches - before.launches, 1, "one launch");
    assert_eq!(after.uploaded - before.uploaded, 128, "the input");
    let read = recording.plan.readback.as_ref().unwrap().n_bytes;
    assert_eq!(after.downloaded - before.downloaded, read, "the outputs");
}

#[test]
fn memory_is_zeroed_and_keeps_what_is_written() {
    let device = open(&options());
    // Three pieces, the last of them short.
    let n_bytes = (17 << 20) + 5;
    let buffer = device.alloc(n_bytes, "large").unwrap();
    let mut found = vec![1; n_bytes as usize];
    device.read(&buffer, 0, &mut found).unwrap();
    assert!(found.iter().all(|&byte| byte == 0), "zeroed");
    let contents: Vec<u8> = (0..n_bytes).map(|i| ((i * 7) >> 3) as u8).collect();
    device.write(&buffer, 0, &contents).unwrap();
    device.read(&buffer, 0, &mut found).unwrap();
    assert!(found == contents, "whole");
    let mut part = [0; 3];
    device.read(&buffer, 4099, &mut part).unwrap();
    assert_eq!(part[..], contents[4099..4102], "a part");
}

#[test]
fn memory_ends_at_the_account() {
    let device = open(&CudaOptions {
        limits: Some(LimitOverrides {
            memory_bytes: Some(1 << 20),
            ..LimitOverrides::default()
        }),
        ..options()
    });
    let half = device.alloc(1 << 19, "half").unwrap();
    match device.alloc((1 << 19) + 1, "too much") {
        Err(DeviceError::OutOfMemory {
            what, free, total, ..
        }) => {
            assert_eq!(what, "too much", "what for");
            assert_eq!((free, total), (1 << 19, 1 << 20), "what is left");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(
            device.alloc(u64::MAX, "absurd"),
            Err(DeviceError::OutOfMemory { .. })
        ),
        "no overflow"
    );
    drop(half);
    device
        .alloc(1 << 20, "all")
        .expect("all of it is free again");
    assert_eq!(device.memory().peak, 1 << 20, "the highest use");
}

#[test]
fn memory_ends_at_the_driver() {
    let device = open(&CudaOptions {
        limits: Some(LimitOverrides {
            memory_bytes: Some(1 << 50),
            ..LimitOverrides::default()
        }),
        ..options()
    });
    let result = device.alloc(1 << 49, "more than there is");
    assert!(
        matches!(result, Err(DeviceError::OutOfMemory { .. })),
        "{result:?}"
    );
    assert_eq!(device.memory().used, 0, "nothing is kept");
    device.alloc(16, "little").expect("the device goes on");
}

#[test]
fn mistakes_of_the_caller_are_usage_errors() {
    let (device, other) = (open(&options()), open(&CudaOptions::new("cuda-emulated#b")));
    let usage = |result: Result<(), DeviceError>, word: &str| match result {
        Err(DeviceError::Usage { what, .. }) => assert!(what.contains(word), "{what}"),
        other => panic!("{word}: {other:?}"),
    };
    let foreign = other.alloc(64, "foreign").unwrap();
    usage(device.write(&foreign, 0, &[0; 4]), "another device");
    usage(device.read(&foreign, 0, &mut [0; 4]), "another device");
    let own = device.alloc(64, "own").unwrap();
    usage(device.write(&own, 64, &[0; 4]), "outside");
    usage(device.write(&own, u64::MAX - 3, &[0; 8]), "outside");
    usage(device.write(&own, 2, &[0; 4]), "whole words");
    usage(device.write(&own, 0, &[0; 3]), "inside a word");

    let recording = norm(&other, &[1, 4]);
    usage(
        device.execute(&recording, &[], None, &[]).map(drop),
        "recorded by",
    );
    let pending = start(&other, &recording, &[step(&recording, &[0; 16])]);
    usage(device.finish(pending).map(drop), "another device");
}

#[test]
fn dropped_handles_do_not_take_memory_from_work_in_flight() {
    let device = open(&options());
    let expected = {
        let recording = norm(&device, &[64, 256]);
        let step_bytes = bytes(&values(64 * 256, 3));
        let pending = start(&device, &recording, &[step(&recording, &step_bytes)]);
        finish(&device, &recording, pending)
    };
    let pending = {
        let recording = norm(&device, &[64, 256]);
        let step_bytes = bytes(&values(64 * 256, 3));
        start(&device, &recording, &[step(&recording, &step_bytes)])
    };
    // Whatever was freed would be handed out here.
    let others: Vec<_> = (0..16)
        .map(|_| device.alloc(64 * 256 * 4, "other").unwrap())
        .collect();
    let found = floats(&device.finish(pending).unwrap());
    assert_eq!(found[..expected.len()], expected[..], "same bits");
    drop(others);
}

#[test]
fn work_in_flight_may_outlive_everyone() {
    let device = open(&options());
    let recording = norm(&device, &[64, 256]);
    let step_bytes = bytes(&values(64 * 256, 3));
    drop(start(&device, &recording, &[step(&recording, &step_bytes)]));
    let pending = start(&device, &recording, &[step(&recording, &step_bytes)]);
    drop(device);
    drop(recording);
    drop(pending);
}

#[test]
fn launches_are_timed_one_by_one() {
    let device = open(&options());
    let recording = norm(&device, &[16, 64]);
    let times = device.profile(&recording).unwrap().unwrap();
    assert_eq!(times.len(), recording.plan.n_launches(), "one each");
}

#[test]
fn a_device_that_was_given_up_is_lost() {
    let device = open(&options());
    let buffer = device.alloc(16, "buffer").unwrap();
    device.destroy();
    let results = [
        device.alloc(16, "another").map(drop),
        device.write(&buffer, 0, &[0; 4]),
        device.read(&buffer, 0, &mut [0; 4]),
    ];
    for result in results {
        assert!(
            matches!(result, Err(DeviceError::Lost { .. })),
            "{result:?}"
        );
    }
}

/// An op that exists only here: `y[i] = x[i] + words[i % 3]`, or whatever the file says.
#[derive(Clone, Debug)]
struct Probe {
    name: &'static str,
}

const TABLE: Table = Table {
    name: "probe_table",
    words: &[10, 20, 30],
};

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Op for Probe {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        Ok(vec![inputs[0].clone()])
    }

    fn launches(&self, operands: Operands<'_>, _: &Caps) -> Result<Launches, OpError> {
        Ok(Launches::one(Launch {
            entry: "probe",
            spec: Spec::threads(32).with("SHARED_BYTES", 128),
            params: Params::new()
                .u32("n", operands.inputs[0].n_elems())
                .i32("minus", -1),
            grid: [1, 1, 1],
            bindings: vec![Binding::Input(0), Binding::Table(TABLE), Binding::Output(0)],
        }))
    }

    fn cost(&self, _: Operands<'_>) -> Cost {
        Cost::default()
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, _: &mut RefArgs<'_>) {}

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

const PROBE: &str = r#"#include "lib/device.cuh"
KERNEL probe(const int* x, const int* words, int* y, const Params p) {
    unsigned i = thread_id();
    if (i < p.n) {
        y[i] = x[i] + words[i % 3u] + p.minus;
    }
}
"#;

fn probe(device: &CudaDevice, name: &'static str) -> Result<Recording, DeviceError> {
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::I32, [4]);
    let y = graph.apply("probe", Probe { name }, &[x]).unwrap();
    graph.output(y);
    try_record(device, "probe", graph)
}

#[test]
fn tables_and_parameters_reach_the_kernel() {
    let device = open(&CudaOptions {
        sources: [("probe.cu".to_owned(), PROBE.to_owned())].into(),
        ..options()
    });
    let recording = probe(&device, "probe").unwrap_or_else(|error| panic!("{error}"));
    let step_bytes: Vec<u8> = (1i32..5).flat_map(i32::to_le_bytes).collect();
    let pending = start(&device, &recording, &[step(&recording, &step_bytes)]);
    let found: Vec<i32> = device
        .finish(pending)
        .unwrap()
        .chunks_exact(4)
        .take(4)
        .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(found, [10, 21, 32, 13], "x + table - 1");
}

#[test]
fn kernels_that_cannot_be_had_are_compile_errors() {
    let broken = PROBE.replace("p.minus", "p.plus");
    let device = open(&CudaOptions {
        sources: [("broken.cu".to_owned(), broken)].into(),
        ..options()
    });
    let compile_error = |name| match probe(&device, name) {
        Err(DeviceError::Compile { kernel, log }) => (kernel, log),
        other => panic!("{other:?}"),
    };
    let (kernel, log) = compile_error("missing");
    assert_eq!(
        kernel, "missing/probe[THREADS=32, SHARED_BYTES=128]",
        "which"
    );
    assert!(
        log.contains("`kernels/missing.cu` does not exist yet"),
        "{log}"
    );
    let (_, log) = compile_error("broken");
    assert!(
        log.contains("kernels/broken.cu:5") && log.contains("plus"),
        "{log}"
    );
    device.alloc(16, "little").expect("the device goes on");
}

#[test]
fn compiled_kernels_are_kept_on_disk() {
    let cache = std::env::temp_dir().join(format!("gemel-kept-{}", std::process::id()));
    let options = CudaOptions {
        cache: Some(cache.clone()),
        ..options()
    };
    let files = || -> Vec<_> {
        std::fs::read_dir(&cache)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    norm(&open(&options), &[2, 8]);
    let [file] = &files()[..] else {
        panic!("one kernel: {:?}", files());
    };
    let whole = std::fs::read(file).unwrap();
    let kept = std::fs::metadata(file).unwrap().modified().unwrap();
    norm(&open(&options), &[3, 8]);
    let modified = std::fs::metadata(file).unwrap().modified().unwrap();
    assert_eq!(
        modified, kept,
        "not compiled again for another number of rows"
    );

    // A file that was damaged in a way that its lengths do not show: the driver refuses it, the source is compiled.
    let mut damaged = whole.clone();
    let image = damaged.windows(4).position(|w| w == b"\x7fELF").unwrap();
    damaged[image] = 0;
    std::fs::write(file, &damaged).unwrap();
    norm(&open(&options), &[2, 8]);
    std::fs::remove_dir_all(&cache).unwrap();
}

#[test]
fn capabilities_are_those_of_a_gpu() {
    let device = open(&options());
    let caps = device.caps();
    assert_eq!(caps.class, DeviceClass::Discrete, "class");
    assert_eq!(caps.warp, Some(32), "warp");
    assert!(caps.f16, "f16");
    assert!(u32::try_from(caps.max_binding_bytes).is_ok(), "32 bits");
    assert_eq!(device.name(), "cuda-emulated:0", "name");
}

#[test]
fn threads_share_a_device() {
    let (device, reference) = (open(&options()), ReferenceDevice::new());
    let recording = norm(&device, &[3, 40]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, reference) = (&device, &reference);
            let shared = &recording;
            scope.spawn(move || {
                for turn in 0..5 {
                    let step_bytes = bytes(&values(120, 100 * thread + turn));
                    // The replay of a shared recording is one unit with its upload and its read-back.
                    let found = start(device, shared, &[step(shared, &step_bytes)]);
                    let found = finish(device, shared, found);
                    // A step buffer of the reference has no such promise: it gets a recording of its own.
                    let own = norm(reference, &[3, 40]);
                    let expected = start(reference, &own, &[step(&own, &step_bytes)]);
                    check_close(&found, &finish(reference, &own, expected));
                }
            });
        }
    });
}

/// Runs tests of this file in a process of its own: the pretend driver reads its settings from the environment.
#[track_caller]
fn run_again(args: &[&str], variable: &str, value: &str) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(args)
        .env(variable, value)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !said.contains(" 0 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn several_devices_are_apart() {
    let variable = "GEMEL_EMULATION_DEVICES";
    if std::env::var_os(variable).is_none() {
        return run_again(&["--exact", "several_devices_are_apart"], variable, "2");
    }
    let devices = [0, 1].map(|n| open(&CudaOptions::new(format!("cuda-emulated:{n}"))));
    assert_eq!(devices[1].name(), "cuda-emulated:1", "name");
    let results: Vec<Vec<f32>> = devices
        .iter()
        .map(|device| {
            let recording = norm(device, &[4, 16]);
            let step_bytes = bytes(&values(64, 5));
            finish(
                device,
                &recording,
                start(device, &recording, &[step(&recording, &step_bytes)]),
            )
        })
        .collect();
    assert_eq!(results[0], results[1], "the same bits");
    let foreign = devices[0].alloc(16, "foreign").unwrap();
    assert!(
        matches!(
            devices[1].write(&foreign, 0, &[0; 4]),
            Err(DeviceError::Usage { .. })
        ),
        "memory stays with its device"
    );
    let missing = open_emulated(&CudaOptions::new("cuda-emulated:2")).unwrap_err();
    assert!(matches!(missing, DeviceError::NotFound { .. }), "{missing}");
}

/// All other tests once more with streams that run behind the host, so that a wait or a reference that is missing
/// shows.
#[test]
fn the_contract_holds_when_streams_lag() {
    let name = "the_contract_holds_when_streams_lag";
    run_again(&["--skip", name], "GEMEL_EMULATION_ASYNC", "1");
}
