//! The device contract on the default adapter: plans against the reference, limits, errors.
//!
//! A machine without an adapter fails these tests with what to install; `scripts/test.sh` installs a software one.

#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "the helpers belong to tests, and small integers are exact"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gemel_core::device::contract::{
    self, Probe, check_close, compile, finish, record, start, tensor, values,
};
use gemel_core::device::{Device, Recording, Upload};
use gemel_core::dtype::DType;
use gemel_core::error::DeviceError;
use gemel_core::graph::{Graph, Tensor, ValueId};
use gemel_core::op::{Binding, DeviceClass, Launch, Launches, Params, Spec, Table};
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::plan::{self, Arena};
use gemel_core::reference::ReferenceDevice;
use gemel_core::tensor::TensorDesc;
use gemel_wgpu::{LimitOverrides, Progress, WgpuDevice, WgpuOptions};

fn options() -> WgpuOptions {
    WgpuOptions::new("wgpu")
}

fn open(options: &WgpuOptions) -> WgpuDevice {
    WgpuDevice::open(options).unwrap_or_else(|error| panic!("{error}"))
}

/// A second device on the same adapter.
fn other() -> WgpuDevice {
    open(&WgpuOptions::new("wgpu:0#1"))
}

#[test]
fn replays_of_a_recording_equal_the_reference() {
    contract::replays_equal_the_reference(&open(&options()));
}

#[test]
fn traffic_of_a_step_is_its_inputs_and_outputs() {
    contract::traffic_of_a_step_is_its_inputs_and_outputs(&open(&options()));
}

#[test]
fn memory_is_zeroed_and_keeps_what_is_written() {
    contract::memory_is_zeroed_and_keeps_what_is_written(&open(&options()));
}

#[test]
fn memory_ends_at_the_account() {
    let mut options = options();
    options.limits = Some(LimitOverrides {
        memory_bytes: Some(1 << 20),
        ..LimitOverrides::default()
    });
    contract::memory_ends_at_the_account(&open(&options));
}

#[test]
fn mistakes_of_the_caller_are_usage_errors() {
    contract::mistakes_of_the_caller_are_usage_errors(&open(&options()), &other());
}

#[test]
fn dropped_handles_do_not_take_memory_from_work_in_flight() {
    contract::dropped_handles_do_not_take_memory_from_work_in_flight(&open(&options()));
}

#[test]
fn work_in_flight_may_outlive_everyone() {
    contract::work_in_flight_may_outlive_everyone(open(&options()));
}

#[test]
fn launches_are_timed_one_by_one() {
    contract::launches_are_timed_one_by_one(&open(&options()));
}

#[test]
fn a_lost_device_reports_it() {
    let device = open(&options());
    contract::a_lost_device_reports_it(&device, || device.destroy());
}

#[test]
fn threads_share_a_device() {
    contract::threads_share_a_device(&open(&options()));
}

#[test]
fn copies_arrive_in_order() {
    let device = open(&options());
    contract::copies_arrive_in_order(&device, &other());
    contract::copies_arrive_in_order(&device, &ReferenceDevice::new());
}

#[test]
fn tickets_can_be_awaited_by_anyone() {
    contract::tickets_can_be_awaited_by_anyone(&open(&options()));
}

/// Runs a recording once and returns its first output.
fn run(device: &dyn Device, recording: &Recording) -> Vec<f32> {
    finish(device, recording, start(device, recording, &[]))
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
    run(device, &record(device, "norm", graph))
}

#[test]
fn a_norm_equals_the_reference() {
    let reference = ReferenceDevice::new();
    for (checked, validation) in [(false, false), (true, true)] {
        let device = open(&WgpuOptions {
            checked,
            validation,
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

/// A launch of one block.
fn launch(entry: &'static str, params: Params, bindings: Vec<Binding>) -> Launch {
    Launch {
        entry,
        spec: Spec::threads(8),
        params,
        grid: [1, 1, 1],
        bindings,
    }
}

/// A probe with one input and one output of `n` floats.
fn unary(n: usize, params: Params) -> Probe {
    let bindings = vec![Binding::Input(0), Binding::Output(0)];
    Probe::new(
        "probe",
        TensorDesc::f32([n]),
        launch("probe", params, bindings),
    )
}

/// Options whose `probe` is this text.
fn with_probe(text: &str) -> WgpuOptions {
    let mut options = options();
    options.sources.insert("probe".to_owned(), text.to_owned());
    options
}

/// Adds one to each of eight floats.
const ADD_ONE: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn probe(@builtin(local_invocation_index) thread: u32) {
    y[thread] = x[thread] + p.one;
}
";

/// A graph that applies a probe to `x = 0 .. 8`, `times` times.
fn chain(device: &dyn Device, probe: &Probe, times: usize) -> Graph {
    let x: Vec<f32> = (0..8u8).map(f32::from).collect();
    let mut graph = Graph::new();
    let mut value = graph.bind("x", &tensor(device, &[8], &x));
    for _ in 0..times {
        value = graph.apply("step", probe.clone(), &[value]).unwrap();
    }
    graph.output(value);
    graph
}

fn add_one() -> Probe {
    unary(8, Params::new().f32("one", 1.0))
}

#[test]
fn every_kind_of_binding_reaches_its_storage() {
    static SQUARES: [u32; 8] = [0, 1, 4, 9, 16, 25, 36, 49];
    let device = open(&with_probe(
        "
@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read_write> scratch: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

@group(0) @binding(0) var<storage, read_write> again: array<u32>;
@group(0) @binding(1) var<storage, read_write> cache: array<f32>;
@group(0) @binding(2) var<storage, read_write> step: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(THREADS)
fn probe_fill(@builtin(local_invocation_index) thread: u32) {
    scratch[thread] = table[thread] * p.factor;
}

@compute @workgroup_size(THREADS)
fn probe(@builtin(local_invocation_index) thread: u32) {
    cache[thread] += f32(again[thread]) + f32(step[0]);
    y[thread] = cache[thread];
}
",
    ));
    let squares = Table {
        name: "squares",
        words: &SQUARES,
    };
    let probe = Probe {
        name: "probe",
        outputs: vec![TensorDesc::f32([8])],
        launches: Launches {
            scratch: vec![32],
            list: vec![
                launch(
                    "probe_fill",
                    Params::new().u32("factor", 10),
                    vec![Binding::Table(squares), Binding::Scratch(0)],
                ),
                launch(
                    "probe",
                    // Parameters are those of the file: the entry does not read them.
                    Params::new().u32("factor", 0),
                    vec![
                        Binding::Scratch(0),
                        Binding::Inout(0),
                        Binding::Input(0),
                        Binding::Output(0),
                    ],
                ),
            ],
        },
    };
    let cache = Tensor {
        desc: TensorDesc::f32([8]),
        buffers: vec![device.alloc(32, "cache").unwrap()],
    };
    let mut graph = Graph::new();
    let step = graph.step_input("step", DType::I32, [1]);
    let cache = graph.bind("cache", &cache);
    let y = graph
        .apply_multi("probe", probe, &[step], &[cache])
        .unwrap();
    graph.output(y[0]);
    let recording = record(&device, "bindings", graph);
    let buffer = recording.plan.step_buffer.clone().unwrap();
    let upload = |step: &[u8; 4]| {
        start(
            &device,
            &recording,
            &[Upload {
                buffer: &buffer,
                offset: 0,
                bytes: step,
            }],
        )
    };
    // Two replays in flight at once, over one cache and one step buffer.
    let first = upload(&1i32.to_le_bytes());
    let second = upload(&100i32.to_le_bytes());
    let expected = |times: u8, steps: u8| -> Vec<f32> {
        (0..8u8)
            .map(|i| f32::from(i * i) * 10.0 * f32::from(times) + f32::from(steps))
            .collect()
    };
    // Finished in the other order: each read-back is that of its own replay.
    assert_eq!(
        finish(&device, &recording, second),
        expected(2, 101),
        "second replay"
    );
    assert_eq!(
        finish(&device, &recording, first),
        expected(1, 1),
        "first replay"
    );
    let traffic = device.traffic();
    assert_eq!(traffic.submits, 2, "one submission a replay");
    assert_eq!(traffic.launches, 4, "two launches a replay");
}

/// Sums rows of a weight.
const ROW_SUMS: &str = "
@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn probe(@builtin(local_invocation_index) thread: u32) {
    if (thread >= p.n_rows) {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < p.n; i++) {
        sum += w[thread * p.n + i];
    }
    y[p.first + thread] = sum;
}
";

#[test]
fn a_weight_larger_than_a_binding_is_read_in_windows() {
    let mut options = with_probe(ROW_SUMS);
    options.limits = Some(LimitOverrides {
        max_binding_bytes: Some(4096),
        ..LimitOverrides::default()
    });
    let device = open(&options);
    assert_eq!(device.caps().max_binding_bytes, 4096, "reported");

    let (rows, n) = (20, 128);
    let values: Vec<f32> = (0..rows * n).map(|i| (i % 7) as f32).collect();
    let mut weight = tensor(&device, &[rows, n], &values);
    let probe = |desc: &TensorDesc| Probe {
        name: "probe",
        outputs: vec![TensorDesc::f32([rows])],
        launches: Launches {
            scratch: Vec::new(),
            list: (0..)
                .zip(desc.windows())
                .map(|(window, (first, n_rows))| {
                    launch(
                        "probe",
                        Params::new()
                            .u32("n_rows", n_rows)
                            .u32("n", n)
                            .u32("first", first),
                        vec![Binding::InputWindow(0, window), Binding::Output(0)],
                    )
                })
                .collect(),
        },
    };
    let graph = |weight: &Tensor| {
        let mut graph = Graph::new();
        let w = graph.bind("w", weight);
        let y = graph.apply("sums", probe(&weight.desc), &[w]).unwrap();
        graph.output(y);
        graph
    };
    let whole = plan::compile("whole", graph(&weight), &device, &mut Arena::default());
    let message = whole.unwrap_err().to_string();
    assert!(message.contains("binds at most 4096"), "{message}");

    weight.desc.window_rows = 8;
    weight.buffers = weight
        .desc
        .windows()
        .iter()
        .map(|&(first, n_rows)| {
            let part = &values[first * n..(first + n_rows) * n];
            tensor(&device, &[n_rows, n], part).buffers[0].clone()
        })
        .collect();
    let found = run(&device, &record(&device, "windows", graph(&weight)));
    let expected: Vec<f32> = values.chunks_exact(n).map(|row| row.iter().sum()).collect();
    assert_eq!(found, expected, "all three windows");
}

#[test]
fn limits_below_the_adapters_are_kept() {
    let mut options = with_probe(ADD_ONE);
    options.class = Some(DeviceClass::Discrete);
    options.limits = Some(LimitOverrides {
        max_blocks_per_axis: Some(4),
        max_threads_per_block: Some(64),
        no_f16: true,
        no_subgroups: true,
        ..LimitOverrides::default()
    });
    let device = open(&options);
    let caps = device.caps();
    assert_eq!(caps.class, DeviceClass::Discrete, "class");
    assert_eq!(caps.max_blocks_per_axis, 4, "grid");
    assert_eq!(caps.max_threads_per_block, 64, "block");
    assert_eq!((caps.f16, caps.warp), (false, None), "features");

    // Nine rows do not fit an axis of four blocks: the grid is folded.
    let whole = |_: &mut Graph, x: ValueId| x;
    let expected = norm(&ReferenceDevice::new(), &[9, 200], &whole);
    check_close(&norm(&device, &[9, 200], &whole), &expected);

    let refused = |change: &dyn Fn(&mut Launch)| {
        let mut probe = add_one();
        change(&mut probe.launches.list[0]);
        let plan = compile(&device, "refused", chain(&device, &probe, 1));
        device.record(&plan).unwrap_err()
    };
    let error = refused(&|launch| launch.grid = [1, 5, 1]);
    assert!(matches!(error, DeviceError::Usage { .. }), "grid: {error}");
    let error = refused(&|launch| launch.spec = Spec::threads(128));
    assert!(
        matches!(error, DeviceError::Compile { .. }),
        "block: {error}"
    );
}

#[test]
fn devices_on_one_adapter_have_names_of_their_own() {
    assert_eq!(other().name(), "wgpu:0#1", "a second device");
}

#[test]
fn operands_of_one_buffer_need_one_access() {
    let text = ADD_ONE.replacen("read_write", "read", 1);
    let device = open(&with_probe(&text));
    // The middle one of three reads and writes the arena.
    let plan = compile(&device, "mixed", chain(&device, &add_one(), 3));
    let error = device.record(&plan).unwrap_err().to_string();
    assert!(error.contains("must be declared `read_write`"), "{error}");
    let device = open(&with_probe(ADD_ONE));
    let found = run(
        &device,
        &record(&device, "chain", chain(&device, &add_one(), 3)),
    );
    assert_eq!(found[..2], [3.0, 4.0], "each step sees the one before");
}

#[test]
fn wrong_kernels_name_file_and_line() {
    let log = |text: &str| {
        let device = open(&with_probe(text));
        let plan = compile(&device, "wrong", chain(&device, &add_one(), 1));
        match device.record(&plan).unwrap_err() {
            DeviceError::Compile { kernel, log } => {
                assert_eq!(kernel, "probe/probe[THREADS=8]", "kernel");
                log
            }
            other => panic!("{other}"),
        }
    };
    let typo = log(&ADD_ONE.replace("p.one", "p.two"));
    assert!(typo.contains("shaders/probe.wgsl:8"), "parser: {typo}");
    let types = log(&ADD_ONE.replace("+ p.one", "+ 1u"));
    assert!(types.contains("shaders/probe.wgsl:8"), "types: {types}");
    let entry = log(&ADD_ONE.replace("fn probe(", "fn other("));
    assert!(entry.contains("no entry point `probe`"), "entry: {entry}");
    let binding = log(&ADD_ONE.replace("@binding(1)", "@binding(3)"));
    assert!(binding.contains("binding 3"), "binding: {binding}");
    let kind = log(&ADD_ONE.replace("var<uniform> p: Params", "var<storage, read> p: Params"));
    assert!(kind.contains("parameter block"), "kind: {kind}");
    let import = log(&format!("#import no_such\n{ADD_ONE}"));
    assert!(import.contains("lib/no_such.wgsl"), "import: {import}");
}

#[test]
fn kernels_are_compiled_once() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut options = with_probe(ADD_ONE);
    let of_progress = calls.clone();
    options.progress = Some(Progress(Arc::new(move |done, total| {
        of_progress.lock().unwrap().push((done, total));
    })));
    let device = open(&options);
    let mut graph = chain(&device, &add_one(), 2);
    let mut wide = add_one();
    wide.launches.list[0].spec = Spec::threads(4);
    let x = graph.outputs[0];
    let y = graph.apply("wide", wide, &[x]).unwrap();
    graph.output(y);
    let plan = compile(&device, "progress", graph);
    let recording = device.record(&plan).unwrap();
    let mut seen = std::mem::take(&mut *calls.lock().unwrap());
    seen.sort_unstable();
    assert_eq!(
        seen,
        [(0, 2), (1, 2), (2, 2)],
        "two kernels for three launches"
    );
    device.record(&plan).unwrap();
    assert!(
        calls.lock().unwrap().is_empty(),
        "nothing new the second time"
    );
    let found = run(&device, &recording);
    assert_eq!(found[0], 2.0, "the first output");
}

/// Steps a generator `n` times, which no compiler can shorten.
const SLOW: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(THREADS)
fn probe(@builtin(local_invocation_index) thread: u32) {
    var state = u32(x[thread]) + 1u;
    for (var i = 0u; i < p.n; i++) {
        state ^= state << 13u;
        state ^= state >> 17u;
        state ^= state << 5u;
    }
    y[thread] = f32(state);
}
";

#[test]
fn launches_are_timed_and_waits_end() {
    let slow = |n: usize| unary(8, Params::new().u32("n", n));
    let device = open(&with_probe(SLOW));
    let recording = record(&device, "timed", chain(&device, &slow(10_000), 2));
    if let Some(times) = device.profile(&recording).unwrap() {
        assert_eq!(times.len(), 2, "one a launch");
        assert!(times.iter().all(|&ns| ns > 0), "{times:?}");
    }

    let mut options = with_probe(SLOW);
    options.deadline = Duration::from_millis(1);
    let device = open(&options);
    if device.adapter().backend == "gl" {
        // GL computes inside the submission: there is nothing left to wait for.
        return;
    }
    let recording = record(&device, "slow", chain(&device, &slow(400_000_000), 1));
    let pending = start(&device, &recording, &[]);
    match device.finish(pending).unwrap_err() {
        DeviceError::Timeout { what, .. } => assert_eq!(what, "plan slow", "what it waited for"),
        other => panic!("{other}"),
    }
}

#[test]
fn an_unknown_adapter_lists_the_known_ones() {
    let error = WgpuDevice::open(&WgpuOptions::new("no such adapter")).unwrap_err();
    assert!(matches!(error, DeviceError::NotFound { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("no such adapter"), "{message}");
    assert!(message.contains("wgpu:0"), "{message}");
}
