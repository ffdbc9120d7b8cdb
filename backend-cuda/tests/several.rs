//! Several devices in one process: tickets across devices, copies between them, and what happens when one fails.
//!
//! The pretend driver reads its settings from the environment, so each test runs itself again in a process of its
//! own: two devices, streams that lag behind the host, and peer access that works, is absent or lies.

#![allow(
    clippy::unwrap_used,
    reason = "the helpers belong to tests, and a failed step ends the test"
)]

use std::process::{Command, Output};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gemel_core::DType;
use gemel_core::device::contract::{Probe, record, step};
use gemel_core::device::lane::{self, Lane};
use gemel_core::device::{
    Access, Buffer, Device, Pending, Place, Recording, Ticket, Transfer, copy_across, next_id,
    submit,
};
use gemel_core::error::DeviceError;
use gemel_core::graph::{Graph, Tensor};
use gemel_core::op::{Binding, Launch, Params, Spec};
use gemel_core::reference::ReferenceDevice;
use gemel_core::tensor::TensorDesc;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaInfo, CudaOptions, PeerAccess, Route, links};

/// `state[..] = 3 x + 1` in its first and last words, `y = state[0] + state[n - 1]`; a trap if `x` is negative.
const KEEP: &str = r#"#include "lib/device.cuh"
KERNEL keep(const int* x, int* state, int* y, const Params p) {
    if (x[0] < 0) {
        trap();
    }
    if (thread_id() == 0u) {
        state[0] = 3 * x[0] + 1;
        state[p.n - 1u] = 3 * x[0] + 1;
        y[0] = state[0] + state[p.n - 1u];
    }
}
"#;

/// `y = state[0] + state[n - 1] + x`, of a state that the other kernel kept.
const TAKE: &str = r#"#include "lib/device.cuh"
KERNEL take(const int* x, const int* state, int* y, const Params p) {
    if (thread_id() == 0u) {
        y[0] = state[0] + state[p.n - 1u] + x[0];
    }
}
"#;

fn probe(name: &'static str, state: Binding, n: usize) -> Probe {
    let launch = Launch {
        entry: name,
        spec: Spec::threads(32),
        params: Params::new().u32("n", n),
        grid: [1, 1, 1],
        bindings: vec![Binding::Input(0), state, Binding::Output(0)],
    };
    Probe::new(name, TensorDesc::new(DType::I32, [1]), launch)
}

fn open(n: usize, peer_access: PeerAccess) -> CudaDevice {
    let options = CudaOptions {
        sources: [
            ("keep.cu".to_owned(), KEEP.to_owned()),
            ("take.cu".to_owned(), TAKE.to_owned()),
        ]
        .into(),
        deadline: Duration::from_secs(20),
        peer_access,
        ..CudaOptions::new(format!("cuda-emulated:{n}"))
    };
    open_emulated(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn open_two() -> [CudaDevice; 2] {
    [0, 1].map(|n| open(n, PeerAccess::Auto))
}

fn state(buffer: &Buffer) -> Tensor {
    Tensor {
        desc: TensorDesc::new(DType::I32, [buffer.n_bytes() as usize / 4]),
        buffers: vec![buffer.clone()],
    }
}

fn keep(device: &dyn Device, buffer: &Buffer) -> Recording {
    let kept = state(buffer);
    let probe = probe("keep", Binding::Inout(0), kept.desc.n_elems());
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::I32, [1]);
    let kept = graph.bind("state", &kept);
    let y = graph.apply_multi("keep", probe, &[x], &[kept]).unwrap();
    graph.output(y[0]);
    record(device, "producer", graph)
}

fn take(device: &dyn Device, buffer: &Buffer) -> Recording {
    let kept = state(buffer);
    let probe = probe("take", Binding::Input(1), kept.desc.n_elems());
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::I32, [1]);
    let kept = graph.bind("state", &kept);
    let y = graph.apply("take", probe, &[x, kept]).unwrap();
    graph.output(y);
    record(device, "consumer", graph)
}

fn start(device: &dyn Device, recording: &Recording, x: i32) -> Result<Pending, DeviceError> {
    submit(
        device,
        recording,
        &[step(recording, &x.to_le_bytes())],
        recording.plan.readback.as_ref(),
    )
}

fn value(bytes: &[u8]) -> i32 {
    i32::from_le_bytes(bytes[..4].try_into().unwrap())
}

fn place<'a>(device: &'a dyn Device, buffer: &'a Buffer) -> Place<'a> {
    Place {
        device,
        buffer,
        offset: 0,
    }
}

/// A producer on one device, a copy, a consumer on the other, again and again with all of it in flight: each consumer
/// must see its own producer's state, whole.
fn relay(devices: &[CudaDevice; 2], n_bytes: u64) {
    let [source, target] = devices;
    let kept = source.alloc(n_bytes, "kept").unwrap();
    let taken = target.alloc(n_bytes, "taken").unwrap();
    let (producer, consumer) = (keep(source, &kept), take(target, &taken));
    let pending: Vec<Pending> = (0..24)
        .map(|turn| {
            start(source, &producer, turn).unwrap();
            copy_across(place(source, &kept), place(target, &taken), n_bytes).unwrap();
            start(target, &consumer, 1000 * turn).unwrap()
        })
        .collect();
    for (turn, pending) in (0..).zip(pending) {
        let found = value(&target.finish(pending).unwrap());
        assert_eq!(found, 2 * (3 * turn + 1) + 1000 * turn, "turn {turn}");
    }
}

/// The sizes of a relay: one word, one piece of the detour through the host, more pieces than it holds at once.
const SIZES: [u64; 3] = [4, 4096, (9 << 20) + 4];

const INSIDE: &str = "GEMEL_TEST_INSIDE";

/// Whether this is a test that runs again, with settings of its own.
fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn again(test: &str, settings: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .env("GEMEL_EMULATION_DEVICES", "2")
        .envs(settings.iter().copied())
        .output()
        .unwrap()
}

#[track_caller]
fn passes(test: &str, settings: &[(&str, &str)]) {
    let output = again(test, settings);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{settings:?}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_consumer_sees_its_producer_on_another_device() {
    if is_inside() {
        let devices = open_two();
        let route = devices[1].route_from(&devices[0]);
        // Where waits are ignored, the test of the peers may fail too, and copies are staged.
        let waits = std::env::var_os("GEMEL_EMULATION_IGNORE_WAITS").is_none();
        match std::env::var("GEMEL_EMULATION_PEER").as_deref() {
            Ok("yes") if waits => assert_eq!(route, Route::Peer, "tested"),
            Ok("yes") => {}
            _ => assert!(matches!(route, Route::Staged(_)), "{route}"),
        }
        for n_bytes in SIZES {
            relay(&devices, n_bytes);
        }
        return;
    }
    let test = "a_consumer_sees_its_producer_on_another_device";
    for peer in ["yes", "no"] {
        for seed in ["1", "2"] {
            passes(
                test,
                &[
                    ("GEMEL_EMULATION_PEER", peer),
                    ("GEMEL_EMULATION_ASYNC", seed),
                ],
            );
        }
        // A planted fault: without the waits the same test must fail, on either route.
        let output = again(
            test,
            &[
                ("GEMEL_EMULATION_PEER", peer),
                ("GEMEL_EMULATION_ASYNC", "1"),
                ("GEMEL_EMULATION_IGNORE_WAITS", "1"),
            ],
        );
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("turn "),
            "missing waits went unnoticed ({peer}): {said}"
        );
    }
}

/// The same fault planted on this side of the driver: a copy whose caller knows of no waits.
#[test]
fn a_copy_without_its_waits_is_too_early() {
    if !is_inside() {
        return passes(
            "a_copy_without_its_waits_is_too_early",
            &[
                ("GEMEL_EMULATION_PEER", "yes"),
                ("GEMEL_EMULATION_ASYNC", "1"),
            ],
        );
    }
    let [source, target] = open_two();
    let kept = source.alloc(64, "kept").unwrap();
    let taken = target.alloc(64, "taken").unwrap();
    let (producer, consumer) = (keep(&source, &kept), take(&target, &taken));
    let early = (1..24)
        .filter(|&turn| {
            let made = start(&source, &producer, turn).unwrap();
            let transfer = Transfer {
                source: &kept,
                source_offset: 0,
                source_waits: &[],
                target: &taken,
                target_offset: 0,
                target_waits: &[],
                n_bytes: 64,
            };
            target.copy(&transfer).unwrap().unwrap();
            let pending = start(&target, &consumer, 0).unwrap();
            let found = value(&target.finish(pending).unwrap());
            source.finish(made).unwrap();
            found != 2 * (3 * turn + 1)
        })
        .count();
    assert!(early > 0, "the waits are needed");
}

#[test]
fn peer_access_is_used_only_where_it_works() {
    if is_inside() {
        let devices = open_two();
        let infos: Vec<CudaInfo> = devices.iter().map(|device| device.info().clone()).collect();
        let lines: Vec<String> = links(&infos).iter().map(ToString::to_string).collect();
        let [line] = &lines[..] else {
            panic!("one line for the pair: {lines:?}");
        };
        for part in ["cuda-emulated:0 <-> cuda-emulated:1", "pinned host memory"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        for (source, target) in [(0, 1), (1, 0)] {
            match devices[target].route_from(&devices[source]) {
                Route::Staged(why) => assert!(why.contains("arrived damaged"), "{why}"),
                route => panic!("{source} -> {target}: {route}"),
            }
        }
        relay(&devices, 4096);
        return;
    }
    for lie in ["garbage", "drop"] {
        passes(
            "peer_access_is_used_only_where_it_works",
            &[
                ("GEMEL_EMULATION_PEER", lie),
                ("GEMEL_EMULATION_ASYNC", "3"),
            ],
        );
    }
}

#[test]
fn peer_access_can_be_switched_off() {
    if !is_inside() {
        return passes("peer_access_can_be_switched_off", &[]);
    }
    let devices = [open(0, PeerAccess::Auto), open(1, PeerAccess::Off)];
    match devices[1].route_from(&devices[0]) {
        Route::Staged(why) => assert!(why.contains("switched off"), "{why}"),
        route => panic!("{route}"),
    }
    assert_eq!(
        devices[0].route_from(&devices[1]),
        Route::Peer,
        "the other way is the other device's choice"
    );
    let again = open(1, PeerAccess::Auto);
    assert_eq!(again.route_from(&devices[1]), Route::Same, "one GPU");
    relay(&devices, 4096);
}

#[test]
fn what_rests_on_a_lost_device_is_lost() {
    if !is_inside() {
        for settings in [&[][..], &[("GEMEL_EMULATION_ASYNC", "1")]] {
            passes("what_rests_on_a_lost_device_is_lost", settings);
        }
        return;
    }
    let [source, target] = open_two();
    let kept = source.alloc(64, "kept").unwrap();
    let taken = target.alloc(64, "taken").unwrap();
    let (producer, consumer) = (keep(&source, &kept), take(&target, &taken));
    let run = |x| {
        start(&source, &producer, x)?;
        copy_across(place(&source, &kept), place(&target, &taken), 64)?;
        let pending = start(&target, &consumer, 0)?;
        target.finish(pending)
    };
    assert_eq!(value(&run(5).unwrap()), 32, "works");
    match run(-1) {
        Err(DeviceError::Lost { reason, .. }) => {
            let named = reason.contains("cuda-emulated:0") || reason.contains("producer");
            assert!(named, "what was lost: {reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_device_may_close_behind_its_copies() {
    if !is_inside() {
        return passes(
            "a_device_may_close_behind_its_copies",
            &[
                ("GEMEL_EMULATION_ASYNC", "2"),
                ("GEMEL_EMULATION_PEER", "yes"),
            ],
        );
    }
    let [source, target] = open_two();
    let kept = source.alloc(64, "kept").unwrap();
    let taken = target.alloc(64, "taken").unwrap();
    let (producer, consumer) = (keep(&source, &kept), take(&target, &taken));
    start(&source, &producer, 11).unwrap();
    copy_across(place(&source, &kept), place(&target, &taken), 64).unwrap();
    drop((producer, kept, source));
    let pending = start(&target, &consumer, 0).unwrap();
    assert_eq!(value(&target.finish(pending).unwrap()), 68, "all of it");
}

/// A lane of another backend, whose work never ends.
struct Endless;

impl Lane for Endless {
    fn wait(&self, value: u64, why: &str) -> Result<(), DeviceError> {
        Err(DeviceError::Timeout {
            device: "endless".to_owned(),
            what: format!("plan {value}, which {why} needs"),
            seconds: 0,
        })
    }
}

#[test]
fn the_host_waits_for_other_backends() {
    let device = open(0, PeerAccess::Auto);
    let kept = device.alloc(64, "kept").unwrap();
    let recording = keep(&device, &kept);
    let lane = next_id();
    let owner: Arc<dyn Lane> = Arc::new(Endless);
    let registered = lane::register(lane, Arc::downgrade(&owner) as Weak<dyn Lane>);
    kept.note(Access::Read, Ticket { lane, value: 7 });
    let message = start(&device, &recording, 1).unwrap_err().to_string();
    for part in ["endless", "plan 7", "producer", "cuda-emulated:0"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    drop(registered);
    let pending = start(&device, &recording, 1).expect("the other lane has ended");
    assert_eq!(value(&device.finish(pending).unwrap()), 8, "3 x + 1, twice");
}

#[test]
fn copies_reach_devices_of_other_backends() {
    let (device, reference) = (open(0, PeerAccess::Auto), ReferenceDevice::new());
    let kept = device.alloc(64, "kept").unwrap();
    let there = reference.alloc(64, "there").unwrap();
    let back = device.alloc(64, "back").unwrap();
    let producer = keep(&device, &kept);
    start(&device, &producer, 4).unwrap();
    copy_across(place(&device, &kept), place(&reference, &there), 64).unwrap();
    copy_across(place(&reference, &there), place(&device, &back), 64).unwrap();
    let consumer = take(&device, &back);
    let pending = start(&device, &consumer, 0).unwrap();
    assert_eq!(
        value(&device.finish(pending).unwrap()),
        26,
        "there and back"
    );
}
