//! What every device keeps, as checks that a backend's tests call with its devices; and the pieces that such tests are
//! made of. Each check panics where the device breaks the contract. A backend that passes them can run plans.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::float_cmp,
    reason = "panicking is how a check fails, and equal bits are what some of them ask for"
)]

use std::fmt;
use std::sync::Arc;

use super::{Access, Device, Pending, Place, Recording, Ticket, Upload, copy_across, submit};
use crate::dtype::DType;
use crate::error::{DeviceError, OpError};
use crate::graph::{Graph, Tensor};
use crate::op::{Caps, Cost, Launch, Launches, Op, Operands, Sharding, Tolerance};
use crate::ops::rms_norm::RmsNorm;
use crate::plan::{self, Arena, Plan};
use crate::reference::{RefArgs, ReferenceDevice};
use crate::tensor::TensorDesc;

/// An op made for a test: its launches run a source file that the test gives.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Name of the op and so of its file.
    pub name: &'static str,
    /// What it makes.
    pub outputs: Vec<TensorDesc>,
    /// How.
    pub launches: Launches,
}

impl Probe {
    /// A probe of one launch and one output.
    pub fn new(name: &'static str, output: TensorDesc, launch: Launch) -> Self {
        Self {
            name,
            outputs: vec![output],
            launches: Launches::one(launch),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Op for Probe {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, _: &[&TensorDesc], _: &[&TensorDesc]) -> Result<Vec<TensorDesc>, OpError> {
        Ok(self.outputs.clone())
    }

    fn launches(&self, _: Operands<'_>, _: &Caps) -> Result<Launches, OpError> {
        Ok(self.launches.clone())
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

    fn reference(&self, _: &mut RefArgs<'_>) {
        panic!("probes run on devices with kernels only");
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Values in -1 .. 1 that look random and depend on the seed alone.
pub fn values(n: usize, seed: u64) -> Vec<f32> {
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

/// The bytes of floats.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The floats of bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|w| f32::from_le_bytes(w.try_into().unwrap()))
        .collect()
}

/// A tensor with these contents.
pub fn tensor(device: &dyn Device, shape: &[usize], values: &[f32]) -> Tensor {
    let buffer = device.alloc(values.len() as u64 * 4, "tensor").unwrap();
    device.write(&buffer, 0, &bytes(values)).unwrap();
    Tensor {
        desc: TensorDesc::f32(shape),
        buffers: vec![buffer],
    }
}

/// Plans a graph with an arena of its own.
pub fn compile(device: &dyn Device, label: &str, graph: Graph) -> Arc<Plan> {
    Arc::new(plan::compile(label, graph, device, &mut Arena::default()).unwrap())
}

/// Plans and records a graph.
pub fn record(device: &dyn Device, label: &str, graph: Graph) -> Recording {
    let plan = compile(device, label, graph);
    device
        .record(&plan)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a replay with the plan's own read-back.
pub fn start(device: &dyn Device, recording: &Recording, uploads: &[Upload<'_>]) -> Pending {
    submit(device, recording, uploads, recording.plan.readback.as_ref())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The first output of a replay in flight. Outputs of a read-back lie apart, each at its own alignment.
pub fn finish(device: &dyn Device, recording: &Recording, pending: Pending) -> Vec<f32> {
    let bytes = device
        .finish(pending)
        .unwrap_or_else(|error| panic!("{error}"));
    let output = &recording.plan.outputs[0];
    floats(&bytes[output.offset..output.offset + output.desc.n_bytes()])
}

/// The upload of the step input `x`.
pub fn step<'a>(recording: &'a Recording, bytes: &'a [u8]) -> Upload<'a> {
    let (offset, _) = recording.plan.step_inputs["x"];
    Upload {
        buffer: recording.plan.step_buffer.as_ref().unwrap(),
        offset: offset as u64,
        bytes,
    }
}

/// A norm of the step input `x`.
pub fn norm(device: &dyn Device, shape: &[usize]) -> Recording {
    let n = *shape.last().unwrap();
    let mut graph = Graph::new();
    let x = graph.step_input("x", DType::F32, shape);
    let w = graph.bind("w", &tensor(device, &[n], &values(n, 2)));
    let y = graph.apply("norm", RmsNorm { eps: 1e-5 }, &[x, w]).unwrap();
    graph.output(y);
    record(device, "norm", graph)
}

/// Compares what a device and the reference made of a norm.
#[track_caller]
pub fn check_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "length");
    for (i, (z, y)) in found.iter().zip(expected).enumerate() {
        assert!(
            (z - y).abs() <= 1e-5 * y.abs().max(1e-3),
            "[{i}]: {z} instead of {y}"
        );
    }
}

fn usage(result: Result<(), DeviceError>, word: &str) {
    match result {
        Err(DeviceError::Usage { what, .. }) => assert!(what.contains(word), "{word}: {what}"),
        other => panic!("{word}: {other:?}"),
    }
}

/// Replays in flight together keep their order, and give what the reference gives.
pub fn replays_equal_the_reference(device: &dyn Device) {
    let reference = ReferenceDevice::new();
    for shape in [&[1, 1][..], &[3, 7], &[5, 33], &[2, 1757], &[2, 3, 65]] {
        let n = shape.iter().product();
        let (ours, expected) = (norm(device, shape), norm(&reference, shape));
        let steps: Vec<Vec<u8>> = (0..2).map(|seed| bytes(&values(n, 10 + seed))).collect();
        // Both are in flight before the first is looked at: the second upload must not overtake the first step.
        let pending: Vec<Pending> = steps
            .iter()
            .map(|step_bytes| start(device, &ours, &[step(&ours, step_bytes)]))
            .collect();
        assert!(pending[0].ticket < pending[1].ticket, "in order");
        for (step_bytes, pending) in steps.iter().zip(pending) {
            let wanted = start(&reference, &expected, &[step(&expected, step_bytes)]);
            check_close(
                &finish(device, &ours, pending),
                &finish(&reference, &expected, wanted),
            );
        }
    }
}

/// A step moves its inputs and outputs and nothing else.
pub fn traffic_of_a_step_is_its_inputs_and_outputs(device: &dyn Device) {
    let recording = norm(device, &[4, 8]);
    let before = device.traffic();
    let step_bytes = bytes(&values(32, 1));
    let pending = start(device, &recording, &[step(&recording, &step_bytes)]);
    finish(device, &recording, pending);
    let after = device.traffic();
    assert_eq!(after.submits - before.submits, 1, "one submission");
    assert_eq!(after.launches - before.launches, 1, "one launch");
    assert_eq!(after.uploaded - before.uploaded, 128, "the input");
    let read = recording.plan.readback.as_ref().unwrap().n_bytes;
    assert_eq!(after.downloaded - before.downloaded, read, "the outputs");
}

/// Memory begins as zeros and keeps what is written, whole and in parts, in pieces and odd lengths.
pub fn memory_is_zeroed_and_keeps_what_is_written(device: &dyn Device) {
    // More than two pieces of any backend's staging, the last of them short.
    let n = (20 << 20) + 3;
    let buffer = device.alloc(n as u64, "large").unwrap();
    let mut out = vec![1; n];
    device.read(&buffer, 0, &mut out).unwrap();
    assert!(out.iter().all(|&byte| byte == 0), "zeroed");
    let contents: Vec<u8> = (0..n).map(|i: usize| (i * 31 + (i >> 13)) as u8).collect();
    device.write(&buffer, 0, &contents).unwrap();
    device.read(&buffer, 0, &mut out).unwrap();
    assert!(out == contents, "whole");
    let mut part = vec![0; n - 1];
    device.read(&buffer, 1, &mut part).unwrap();
    assert!(part == contents[1..], "without the first byte");

    device.write(&buffer, 8, &[1, 2, 3, 4]).unwrap();
    let mut out = [0; 8];
    device.read(&buffer, 6, &mut out).unwrap();
    assert_eq!(out[2..6], [1, 2, 3, 4], "a small write in the middle");
    assert_eq!(out[6..], contents[12..14], "its neighbours stay");
    for (offset, n_bytes) in [(2, 4), (4, 3), (n as u64, 4), (u64::MAX - 3, 8)] {
        let error = device
            .write(&buffer, offset, &[0; 8][..n_bytes])
            .unwrap_err();
        assert!(
            matches!(error, DeviceError::Usage { .. }),
            "{offset}+{n_bytes}: {error}"
        );
    }
}

/// Memory ends at the account, of 1 MiB here, and is given back.
pub fn memory_ends_at_the_account(device: &dyn Device) {
    assert_eq!(device.memory().total, 1 << 20, "opened for this check");
    let first = device.alloc(600 << 10, "weights").unwrap();
    match device.alloc(600 << 10, "cache").unwrap_err() {
        DeviceError::OutOfMemory {
            what,
            needed,
            free,
            total,
            ..
        } => {
            assert_eq!(what, "cache", "what it was for");
            let sizes = (600 << 10, 424 << 10, 1 << 20);
            assert_eq!((needed, free, total), sizes, "asked, left, all");
        }
        other => panic!("{other}"),
    }
    let absurd = device.alloc(u64::MAX, "absurd").unwrap_err();
    assert!(!absurd.to_string().is_empty(), "no overflow: {absurd}");
    drop(first);
    let second = device.alloc(600 << 10, "cache").unwrap();
    let small = device.alloc(1, "small").unwrap();
    assert_eq!(small.n_bytes(), 4, "rounded up to a word");
    assert!(device.memory().used > 600 << 10, "both counted");
    // Work in flight may keep memory; after a read there is none.
    device.read(&small, 0, &mut [0; 4]).unwrap();
    drop((second, small));
    assert_eq!(device.memory().used, 0, "given back");
    assert!(device.memory().peak > 600 << 10, "highest use so far");
}

/// What belongs to another device, or lies outside, is refused by name. `other` is of the same backend.
pub fn mistakes_of_the_caller_are_usage_errors(device: &dyn Device, other: &dyn Device) {
    let foreign = other.alloc(64, "foreign").unwrap();
    usage(device.write(&foreign, 0, &[0; 4]), "foreign");
    usage(device.read(&foreign, 0, &mut [0; 4]), "foreign");
    let own = device.alloc(64, "own").unwrap();
    usage(device.write(&own, 64, &[0; 4]), "outside");
    usage(device.write(&own, u64::MAX - 3, &[0; 8]), "outside");
    usage(device.write(&own, 2, &[0; 4]), "whole words");
    usage(device.write(&own, 0, &[0; 3]), "inside a word");

    let recording = norm(other, &[1, 4]);
    usage(device.record(&recording.plan).map(drop), "another device");
    usage(
        submit(device, &recording, &[], None).map(drop),
        "recorded by",
    );
    usage(device.profile(&recording).map(drop), "recorded by");
    let pending = start(other, &recording, &[step(&recording, &[0; 16])]);
    usage(device.finish(pending).map(drop), "another device");
}

/// Dropping a handle never frees memory that is in use.
pub fn dropped_handles_do_not_take_memory_from_work_in_flight(device: &dyn Device) {
    let begin = || {
        let recording = norm(device, &[64, 256]);
        let step_bytes = bytes(&values(64 * 256, 3));
        let pending = start(device, &recording, &[step(&recording, &step_bytes)]);
        (recording, pending)
    };
    let (recording, pending) = begin();
    let expected = finish(device, &recording, pending);
    let pending = begin().1;
    // Whatever was freed would be handed out here.
    let others: Vec<_> = (0..16)
        .map(|_| device.alloc(64 * 256 * 4, "other").unwrap())
        .collect();
    let found = floats(&device.finish(pending).unwrap());
    assert_eq!(found[..expected.len()], expected[..], "same bits");
    drop(others);
}

/// A device may be dropped with work in flight.
pub fn work_in_flight_may_outlive_everyone<D: Device>(device: D) {
    let recording = norm(&device, &[64, 256]);
    let step_bytes = bytes(&values(64 * 256, 3));
    drop(start(&device, &recording, &[step(&recording, &step_bytes)]));
    let pending = start(&device, &recording, &[step(&recording, &step_bytes)]);
    drop(device);
    drop(recording);
    drop(pending);
}

/// A profile has one time a launch, where the device can tell.
pub fn launches_are_timed_one_by_one(device: &dyn Device) {
    let recording = norm(device, &[16, 64]);
    if let Some(times) = device.profile(&recording).unwrap() {
        assert_eq!(times.len(), recording.plan.n_launches(), "one each");
    }
}

/// A device that was lost says so, whatever it is asked. `lose` takes it away.
pub fn a_lost_device_reports_it(device: &dyn Device, lose: impl FnOnce()) {
    let recording = norm(device, &[2, 8]);
    let pending = start(device, &recording, &[step(&recording, &[0; 64])]);
    let buffer = device.alloc(4, "buffer").unwrap();
    lose();
    let lost = |result: Result<(), DeviceError>, what: &str| {
        assert!(
            matches!(result, Err(DeviceError::Lost { .. })),
            "{what}: {result:?}"
        );
    };
    lost(device.finish(pending).map(drop), "finish");
    lost(device.alloc(4, "more").map(drop), "alloc");
    lost(device.write(&buffer, 0, &[0; 4]), "write");
    lost(device.read(&buffer, 0, &mut [0; 4]), "read");
    lost(device.record(&recording.plan).map(drop), "record");
    lost(submit(device, &recording, &[], None).map(drop), "submit");
}

/// Threads may share a device and a recording: a replay is one unit with its upload and its read-back.
pub fn threads_share_a_device(device: &dyn Device) {
    let reference = ReferenceDevice::new();
    let recording = norm(device, &[3, 40]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (reference, shared) = (&reference, &recording);
            scope.spawn(move || {
                for turn in 0..5 {
                    let step_bytes = bytes(&values(120, 100 * thread + turn));
                    let found = start(device, shared, &[step(shared, &step_bytes)]);
                    let found = finish(device, shared, found);
                    let own = norm(reference, &[3, 40]);
                    let expected = start(reference, &own, &[step(&own, &step_bytes)]);
                    check_close(&found, &finish(reference, &own, expected));
                }
            });
        }
    });
}

/// Copies between buffers of a device, and to and from another one, arrive whole and in order.
pub fn copies_arrive_in_order(device: &dyn Device, other: &dyn Device) {
    let n_bytes = (9 << 20) + 4;
    let place = |device, buffer, offset| Place {
        device,
        buffer,
        offset,
    };
    let first = device.alloc(n_bytes, "first").unwrap();
    let second = device.alloc(n_bytes + 8, "second").unwrap();
    let there = other.alloc(n_bytes, "there").unwrap();
    let back = device.alloc(n_bytes, "back").unwrap();
    let contents = |turn: u64| -> Vec<u8> {
        (0..n_bytes)
            .map(|at| (((at + turn) * 7) >> 3) as u8)
            .collect()
    };
    for turn in 0..2 {
        device.write(&first, 0, &contents(turn)).unwrap();
        copy_across(place(device, &first, 0), place(device, &second, 4), n_bytes).unwrap();
        copy_across(place(device, &second, 4), place(other, &there, 0), n_bytes).unwrap();
        // Written over while the copies may be under way.
        device.write(&first, 0, &[0; 64]).unwrap();
        device.write(&second, 0, &[0; 64]).unwrap();
        copy_across(place(other, &there, 0), place(device, &back, 0), n_bytes).unwrap();
        other.write(&there, 0, &[0; 64]).unwrap();
        let mut found = vec![0; n_bytes as usize];
        device.read(&back, 0, &mut found).unwrap();
        assert!(found == contents(turn), "turn {turn}");
    }
    usage(
        copy_across(place(device, &first, 4), place(other, &there, 0), n_bytes),
        "outside",
    );
    usage(
        copy_across(place(device, &first, 2), place(device, &back, 0), 4),
        "whole words",
    );
}

/// Tickets of submissions are known to the process, and a wait for them ends.
pub fn tickets_can_be_awaited_by_anyone(device: &dyn Device) {
    let recording = norm(device, &[8, 64]);
    let pending = start(device, &recording, &[step(&recording, &[0; 2048])]);
    let buffer = device.alloc(16, "buffer").unwrap();
    device.write(&buffer, 0, &[7; 16]).unwrap();
    let written: Vec<Ticket> = buffer.hazards(Access::Read);
    assert_eq!(written.len(), 1, "one writer: {written:?}");
    assert_eq!(written[0].lane, device.lane(), "of this lane");
    for ticket in [pending.ticket, written[0]] {
        super::lane::wait(ticket, "a test").unwrap_or_else(|error| panic!("{error}"));
    }
    finish(device, &recording, pending);
}
