//! A kernel that fails takes its device with it, and nothing else.
//!
//! In a process of its own: the failure is the whole context's, as on CUDA.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests")]

use std::fmt;
use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::{Device, Recording, submit};
use gemel_core::error::{DeviceError, OpError};
use gemel_core::graph::Graph;
use gemel_core::op::{
    Binding, Caps, Cost, Launch, Launches, Op, Operands, Params, Sharding, Spec, Tolerance,
};
use gemel_core::plan::{self, Arena};
use gemel_core::reference::RefArgs;
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};

/// `y = x`, and a trap in the kernel if the first element is negative.
#[derive(Clone, Debug)]
struct Trap;

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("trap")
    }
}

impl Op for Trap {
    fn name(&self) -> &'static str {
        "trap"
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        Ok(vec![inputs[0].clone()])
    }

    fn launches(&self, _: Operands<'_>, _: &Caps) -> Result<Launches, OpError> {
        Ok(Launches::one(Launch {
            entry: "trap_if",
            spec: Spec::threads(32),
            params: Params::new(),
            grid: [1, 1, 1],
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, _: Operands<'_>) -> Cost {
        Cost::default()
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, _: &mut RefArgs<'_>) {}

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
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

fn open() -> CudaDevice {
    let options = CudaOptions {
        sources: [("trap.cu".to_owned(), TRAP.to_owned())].into(),
        ..CudaOptions::new("cuda-emulated")
    };
    open_emulated(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn record(device: &dyn Device) -> Recording {
    let x = device.alloc(4, "x").unwrap();
    let mut graph = Graph::new();
    let x = graph.bind(
        "x",
        &gemel_core::graph::Tensor {
            desc: TensorDesc::new(DType::I32, [1]),
            buffers: vec![x],
        },
    );
    let y = graph.apply("trap", Trap, &[x]).unwrap();
    graph.output(y);
    let plan = plan::compile("trap", graph, device, &mut Arena::default()).unwrap();
    device.record(&Arc::new(plan)).unwrap()
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
    let other = "a_failed_kernel_loses_the_device_and_the_next_one_works";
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

#[test]
fn a_failed_kernel_loses_the_device_and_the_next_one_works() {
    let device = open();
    let recording = record(&device);
    assert_eq!(run(&device, &recording, 7).unwrap(), 7, "works");
    match run(&device, &recording, -1) {
        Err(DeviceError::Lost { device, reason }) => {
            assert_eq!(device, "cuda-emulated:0", "which");
            assert!(reason.contains("plan trap"), "{reason}");
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
    let device = open();
    let recording = record(&device);
    assert_eq!(
        run(&device, &recording, 8).unwrap(),
        8,
        "a new device works"
    );
}
