//! A kernel that fails takes its device with it, and nothing else.
//!
//! In a process of its own: the failure is the whole context's, as on CUDA.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use gemel_core::DType;
use gemel_core::device::contract::{self, Probe};
use gemel_core::device::{Device, Recording, submit};
use gemel_core::error::DeviceError;
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{Binding, Launch, Params, Spec};
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};

/// `y = x`, and a trap in the kernel if the first element is negative.
fn trap(desc: &TensorDesc) -> Probe {
    let launch = Launch {
        entry: "trap_if",
        spec: Spec::threads(32),
        params: Params::new(),
        grid: [1, 1, 1],
        bindings: vec![Binding::Input(0), Binding::Output(0)],
    };
    Probe::new("trap", desc.clone(), launch)
}

const TRAP: &str = r#"#include "lib/device.cuh"
KERNEL trap_if(const int* x, int* y, const Params p) {
    if (x[0] < 0) {
        trap();
    }
    if (thread_id() == 0u) {
        y[0] = x[0];
    }
}
"#;

fn options() -> CudaOptions {
    CudaOptions {
        sources: [("trap.cu".to_owned(), TRAP.to_owned())].into(),
        ..CudaOptions::new("cuda-emulated")
    }
}

fn open(options: &CudaOptions) -> CudaDevice {
    open_emulated(options).unwrap_or_else(|error| panic!("{error}"))
}

/// The op, so many times over.
fn record(device: &dyn Device, times: usize) -> Recording {
    let x = Tensor {
        desc: TensorDesc::new(DType::I32, [1]),
        buffers: vec![device.alloc(4, "x").unwrap()],
    };
    let mut graph = Graph::new();
    let probe = trap(&x.desc);
    let mut value = graph.bind("x", &x);
    for _ in 0..times {
        value = graph.apply("trap", probe.clone(), &[value]).unwrap();
    }
    graph.output(value);
    contract::record(device, "trap", graph)
}

/// A replay with this input.
fn run(device: &dyn Device, recording: &Recording, x: i32) -> Result<i32, DeviceError> {
    let (buffer, _) = recording
        .plan
        .touches()
        .into_iter()
        .find(|(buffer, _)| buffer.label() == "x")
        .unwrap();
    device.write(&buffer, 0, &x.to_le_bytes())?;
    let pending = submit(device, recording, &[], recording.plan.readback.as_ref())?;
    let bytes = device.finish(pending)?;
    Ok(i32::from_le_bytes(bytes[..4].try_into().unwrap()))
}

/// The same with a stream that runs behind the host: the failure shows when the work is awaited, not when it is
/// launched. The pretend driver reads its settings from the environment of a process.
#[test]
fn a_failure_shows_when_streams_lag() {
    for other in [
        "a_failed_kernel_loses_the_device_and_the_next_one_works",
        "a_checked_device_names_the_kernel",
    ] {
        passes_when_streams_lag(other);
    }
}

#[track_caller]
fn passes_when_streams_lag(other: &str) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", other])
        .env("GEMEL_EMULATION_ASYNC", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

/// One test at a time: a failure is that of the whole context, until the last that holds it has gone.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_failed_kernel_loses_the_device_and_the_next_one_works() {
    let _alone = alone();
    let device = open(&options());
    let recording = record(&device, 1);
    assert_eq!(run(&device, &recording, 7).unwrap(), 7, "works");
    match run(&device, &recording, -1) {
        Err(DeviceError::Lost { device, reason }) => {
            assert_eq!(device, "cuda-emulated:0", "which");
            for part in ["plan trap", "trap/trap_if[THREADS=32]"] {
                assert!(reason.contains(part), "{part}: {reason}");
            }
        }
        other => panic!("{other:?}"),
    }
    for result in [
        run(&device, &recording, 7).map(drop),
        device.alloc(4, "more").map(drop),
    ] {
        assert!(
            matches!(result, Err(DeviceError::Lost { .. })),
            "{result:?}"
        );
    }
    // The failure is the context's, which ends with the last that holds it.
    drop(recording);
    drop(device);
    let device = open(&options());
    let recording = record(&device, 1);
    assert_eq!(
        run(&device, &recording, 8).unwrap(),
        8,
        "a new device works"
    );
}

/// A plan of several kernels fails as a whole; launch by launch, the one that failed has a name.
#[test]
fn a_checked_device_names_the_kernel() {
    let _alone = alone();
    let device = open(&CudaOptions {
        checked: true,
        ..options()
    });
    let recording = record(&device, 3);
    assert_eq!(run(&device, &recording, 7).unwrap(), 7, "works");
    match run(&device, &recording, -1) {
        Err(DeviceError::Lost { reason, .. }) => {
            assert!(reason.contains("trap/trap_if[THREADS=32]"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
