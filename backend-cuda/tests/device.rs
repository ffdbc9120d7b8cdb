//! The device contract on the emulated device: the backend's own code on the pretend driver.
//!
//! Needs a C++ compiler, for the pretend driver and for each kernel (kept in the cache folder).

#![allow(
    clippy::unwrap_used,
    reason = "the helpers belong to tests, and a failed step ends the test"
)]

use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::contract::{self, Probe, bytes, finish, norm, start, step, values};
use gemel_core::device::{Device, Recording};
use gemel_core::error::DeviceError;
use gemel_core::graph::Graph;
use gemel_core::op::{Binding, DeviceClass, Launch, Params, Spec, Table};
use gemel_core::plan::{self, Arena};
use gemel_core::reference::ReferenceDevice;
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions, LimitOverrides};

fn options() -> CudaOptions {
    CudaOptions::new("cuda-emulated")
}

fn open(options: &CudaOptions) -> CudaDevice {
    open_emulated(options).unwrap_or_else(|error| panic!("{error}"))
}

/// A second device on the same GPU.
fn other() -> CudaDevice {
    open(&CudaOptions::new("cuda-emulated#b"))
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
    contract::memory_ends_at_the_account(&open(&CudaOptions {
        limits: Some(LimitOverrides {
            memory_bytes: Some(1 << 20),
            ..LimitOverrides::default()
        }),
        ..options()
    }));
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
    let device = open(&options());
    contract::launches_are_timed_one_by_one(&device);
    let times = device.profile(&norm(&device, &[2, 8])).unwrap();
    assert!(times.is_some(), "CUDA can always tell");
}

#[test]
fn a_device_that_was_given_up_is_lost() {
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

/// `y[i] = x[i] + words[i % 3] - 1`, or whatever the file says.
const TABLE: Table = Table {
    name: "probe_table",
    words: &[10, 20, 30],
};

const PROBE: &str = r#"#include "lib/device.cuh"
KERNEL probe(const int* x, const int* words, int* y, const Params p) {
    unsigned i = thread_id();
    if (i < p.n) {
        y[i] = x[i] + words[i % 3u] + p.minus;
    }
}
"#;

fn probe(device: &CudaDevice, name: &'static str) -> Result<Recording, DeviceError> {
    let desc = TensorDesc::new(DType::I32, [4]);
    let launch = Launch {
        entry: "probe",
        spec: Spec::threads(32).with("SHARED_BYTES", 128),
        params: Params::new().u32("n", 4).i32("minus", -1),
        grid: [1, 1, 1],
        bindings: vec![Binding::Input(0), Binding::Table(TABLE), Binding::Output(0)],
    };
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::I32, [4]);
    let probe = Probe::new(name, desc, launch);
    let y = graph.apply("probe", probe, &[x]).unwrap();
    graph.output(y);
    let plan = plan::compile("probe", graph, device, &mut Arena::default()).unwrap();
    device.record(&Arc::new(plan))
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

/// Runs tests of this file in a process of its own: the pretend driver reads its settings from the environment.
#[track_caller]
fn run_again(args: &[&str], settings: &[(&str, &str)]) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(args)
        .envs(settings.iter().copied())
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
        return run_again(
            &["--exact", "several_devices_are_apart"],
            &[(variable, "2")],
        );
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
    run_again(
        &["--skip", name],
        &[
            ("GEMEL_EMULATION_ASYNC", "1"),
            ("GEMEL_EMULATION_PINNED_ONLY", "1"),
        ],
    );
}

/// While a launch takes its time the host goes on: uploads are staged in pinned memory, and what earlier steps used is
/// kept, because the driver frees nothing before the device is idle.
#[test]
fn submissions_do_not_wait_for_the_stream() {
    let variable = "GEMEL_EMULATION_STALL_AT";
    if std::env::var_os(variable).is_none() {
        return run_again(
            &["--exact", "submissions_do_not_wait_for_the_stream"],
            &[
                (variable, "25"),
                ("GEMEL_EMULATION_STALL_MS", "6000"),
                ("GEMEL_EMULATION_ASYNC", "1"),
                ("GEMEL_EMULATION_PINNED_ONLY", "1"),
            ],
        );
    }
    let device = open(&options());
    let recording = norm(&device, &[4, 16]);
    let begin = |seed| {
        let step_bytes = bytes(&values(64, seed));
        start(&device, &recording, &[step(&recording, &step_bytes)])
    };
    let mut pending: Vec<_> = (0..24).map(begin).collect();
    let last = pending.pop().unwrap();
    finish(&device, &recording, last);
    // The one that stalls, and others behind it.
    let began = std::time::Instant::now();
    pending.extend((24..40).map(begin));
    let elapsed = began.elapsed();
    assert!(elapsed.as_secs() < 3, "the host waited: {elapsed:?}");
    for pending in pending {
        finish(&device, &recording, pending);
    }
    assert!(began.elapsed().as_secs() >= 5, "the launch took its time");
}
