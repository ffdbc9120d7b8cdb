//! What can go wrong below the contract, on the ordinary path of a launch: each failure is an error with a type that
//! names the thing and the remedy.
//!
//! The pretend driver reads its settings from the environment, so most tests run themselves again in a process of
//! their own.

#![allow(
    clippy::unwrap_used,
    reason = "the helpers belong to tests, and a failed step ends the test"
)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gemel_core::DType;
use gemel_core::device::contract::{Probe, norm, start, step};
use gemel_core::device::{Device, Recording, submit};
use gemel_core::error::DeviceError;
use gemel_core::graph::Graph;
use gemel_core::op::{Binding, Launch, Params, Spec};
use gemel_core::plan::{self, Arena};
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::{build_driver, open_emulated};
use gemel_cuda::{CudaDevice, CudaOptions, LimitOverrides, enumerate};

fn options() -> CudaOptions {
    CudaOptions::new("cuda-emulated")
}

fn open(options: &CudaOptions) -> CudaDevice {
    open_emulated(options).unwrap_or_else(|error| panic!("{error}"))
}

const INSIDE: &str = "GEMEL_TEST_INSIDE";

/// Runs a test again with these settings and returns false; inside, returns true.
#[track_caller]
fn inside(test: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{settings:?}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[test]
fn memory_that_the_driver_has_not_says_what_is_left() {
    let settings = [("GEMEL_EMULATION_MB", "64")];
    if !inside(
        "memory_that_the_driver_has_not_says_what_is_left",
        &settings,
    ) {
        return;
    }
    // The account believes in more than there is.
    let device = open(&CudaOptions {
        limits: Some(LimitOverrides {
            memory_bytes: Some(1 << 30),
            ..LimitOverrides::default()
        }),
        ..options()
    });
    let kept = device.alloc(40 << 20, "weights").unwrap();
    match device.alloc(40 << 20, "cache").unwrap_err() {
        DeviceError::OutOfMemory {
            device,
            what,
            needed,
            free,
            ..
        } => {
            assert_eq!(
                (&device[..], &what[..]),
                ("cuda-emulated:0", "cache"),
                "who"
            );
            assert_eq!((needed, free), (40 << 20, 24 << 20), "asked and left");
        }
        other => panic!("{other}"),
    }
    drop(kept);
    let used = device.memory().used;
    assert!(
        used <= 40 << 20,
        "the failed allocation is off the account: {used}"
    );
    device.alloc(40 << 20, "cache").expect("the device goes on");
}

/// A kernel with so much dynamic shared memory.
fn probe(device: &CudaDevice, shared_bytes: u32) -> Result<Recording, DeviceError> {
    let launch = Launch {
        entry: "probe",
        spec: Spec::threads(32).with("SHARED_BYTES", shared_bytes),
        params: Params::new(),
        grid: [1, 1, 1],
        bindings: vec![Binding::Input(0), Binding::Output(0)],
    };
    let desc = TensorDesc::new(DType::I32, [4]);
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::I32, [4]);
    let y = graph
        .apply("probe", Probe::new("probe", desc, launch), &[x])
        .unwrap();
    graph.output(y);
    let plan = plan::compile("probe", graph, device, &mut Arena::default()).unwrap();
    device.record(&Arc::new(plan))
}

#[test]
fn a_launch_that_is_refused_names_kernel_and_specialisation() {
    let source = "#include \"lib/device.cuh\"\n\
                  KERNEL probe(const int* x, int* y, const Params p) { y[0] = x[0]; }\n";
    let device = open(&CudaOptions {
        sources: [("probe.cu".to_owned(), source.to_owned())].into(),
        ..options()
    });
    match probe(&device, 1 << 20) {
        Err(DeviceError::Driver { device, message }) => {
            assert_eq!(device, "cuda-emulated:0", "which device");
            for part in [
                "probe/probe[THREADS=32, SHARED_BYTES=1048576]",
                "shared memory",
            ] {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
        other => panic!("{other:?}"),
    }
    probe(&device, 1024).expect("the device goes on");
}

#[test]
fn a_device_that_vanishes_is_lost_by_name() {
    let settings = [
        ("GEMEL_EMULATION_LOSE_AT", "3"),
        ("GEMEL_EMULATION_ASYNC", "1"),
    ];
    if !inside("a_device_that_vanishes_is_lost_by_name", &settings) {
        return;
    }
    let device = open(&options());
    let recording = norm(&device, &[2, 8]);
    let lost = (0..8).find_map(|_| {
        let upload = step(&recording, &[0; 64]);
        let pending = submit(&device, &recording, &[upload], None);
        pending.and_then(|pending| device.finish(pending)).err()
    });
    match lost {
        Some(DeviceError::Lost { device, reason }) => {
            assert_eq!(device, "cuda-emulated:0", "which device");
            for part in [
                "plan norm",
                "rms_norm/rms_norm[",
                "CUDA_ERROR_LAUNCH_FAILED",
            ] {
                assert!(reason.contains(part), "{part}: {reason}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_that_takes_too_long_names_what_it_waits_for() {
    let settings = [
        ("GEMEL_EMULATION_STALL_AT", "2"),
        ("GEMEL_EMULATION_STALL_MS", "2500"),
        ("GEMEL_EMULATION_ASYNC", "1"),
    ];
    if !inside(
        "a_wait_that_takes_too_long_names_what_it_waits_for",
        &settings,
    ) {
        return;
    }
    let device = open(&CudaOptions {
        deadline: Duration::from_secs(1),
        ..options()
    });
    let recording = norm(&device, &[2, 8]);
    let begin = || start(&device, &recording, &[step(&recording, &[0; 64])]);
    device.finish(begin()).expect("in time");
    let (slow, behind) = (begin(), begin());
    match device.finish(slow).unwrap_err() {
        DeviceError::Timeout {
            device,
            what,
            seconds,
        } => {
            assert_eq!(
                (&device[..], seconds),
                ("cuda-emulated:0", 1),
                "who and how long"
            );
            for part in ["plan norm", "in flight: plan norm"] {
                assert!(what.contains(part), "{part}: {what}");
            }
        }
        other => panic!("{other}"),
    }
    std::thread::sleep(Duration::from_secs(2));
    device.finish(behind).expect("slow is not lost");
}

/// Runs with the pretend driver where programs look for the real one, as on a machine that has it.
#[track_caller]
fn inside_installed(test: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let library = build_driver().unwrap();
    let folder = library.parent().and_then(Path::to_str).unwrap();
    let all: Vec<(&str, &str)> = settings
        .iter()
        .copied()
        .chain([("LD_LIBRARY_PATH", folder)])
        .collect();
    inside(test, &all)
}

/// The reason why there is no device, which an attempt to open one repeats.
fn refusal() -> String {
    let reason = enumerate().expect_err("there is none");
    assert_eq!(reason.lines().count(), 1, "one line: {reason}");
    match CudaDevice::open(&CudaOptions::new("cuda")) {
        Err(DeviceError::NotFound { wanted, available }) => {
            assert_eq!(wanted, "cuda", "what was asked for");
            assert!(available.contains(&reason), "{available}");
        }
        other => panic!("{other:?}"),
    }
    reason
}

#[test]
fn a_driver_that_is_too_old_says_which_is_needed() {
    let settings = [("GEMEL_EMULATION_VERSION", "11020")];
    if inside_installed("a_driver_that_is_too_old_says_which_is_needed", &settings) {
        let error = open_emulated(&options()).unwrap_err().to_string();
        for part in ["too old", "11.2", "11.4 is needed", "newer driver"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn a_compiler_that_cannot_be_loaded_names_its_path() {
    let settings = [("GEMEL_NVRTC", "/nowhere/libnvrtc.so")];
    if inside_installed("a_compiler_that_cannot_be_loaded_names_its_path", &settings) {
        let reason = refusal();
        for part in ["NVRTC", "$GEMEL_NVRTC", "/nowhere/libnvrtc.so"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
}

#[test]
fn a_driver_without_devices_says_so() {
    let settings = [("GEMEL_EMULATION_DEVICES", "0")];
    if inside_installed("a_driver_without_devices_says_so", &settings) {
        let error = open_emulated(&options()).unwrap_err().to_string();
        assert!(error.contains("no CUDA-capable device"), "{error}");
    }
}

/// A library that is no driver, where the driver should be.
#[test]
fn a_missing_driver_is_named() {
    let folder = std::env::temp_dir().join(format!("gemel-no-driver-{}", std::process::id()));
    if std::env::var_os(INSIDE).is_none() {
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(folder.join(name), "no library").unwrap();
        }
    }
    let path = folder.to_str().unwrap().to_owned();
    if inside("a_missing_driver_is_named", &[("LD_LIBRARY_PATH", &path)]) {
        // Where a real driver is installed as well, the loader goes on to it.
        if let Err(reason) = enumerate() {
            let named = ["libcuda", "libnvrtc", "no CUDA-capable device"];
            assert!(named.iter().any(|part| reason.contains(part)), "{reason}");
        }
        return;
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The emulation wins over a driver that is installed, if the process has not opened that one.
#[test]
fn the_emulation_opens_beside_an_installed_driver() {
    let folder = std::env::temp_dir().join(format!("gemel-installed-{}", std::process::id()));
    if std::env::var_os(INSIDE).is_none() {
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("driver.c");
        // A driver that knows of no device, under the first name that programs ask for.
        std::fs::write(&source, "int cuInit(unsigned flags) { return 100; }\n").unwrap();
        let built = Command::new("g++")
            .args(["-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"])
            .arg(&source)
            .arg("-o")
            .arg(folder.join("libcuda.so"))
            .status()
            .unwrap();
        assert!(built.success(), "the stand-in is built");
    }
    let path = folder.to_str().unwrap().to_owned();
    let test = "the_emulation_opens_beside_an_installed_driver";
    if inside(test, &[("LD_LIBRARY_PATH", &path)]) {
        let device = open(&options());
        device.alloc(16, "little").expect("the emulation's");
        return;
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
