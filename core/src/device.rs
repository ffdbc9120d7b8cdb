//! The device contract: memory, recordings, submissions and the tickets that order them.
//!
//! # Who validates
//! The caller, once: shapes when a graph is built, limits when it is planned. A device returns only what a caller
//! cannot foresee: out of memory, device lost, a kernel that does not compile, a wait past its deadline.
//!
//! # Order
//! A device executes submissions of one lane in order. Every [`Buffer`] remembers the tickets of its last writer and
//! of the readers since; [`submit`] is the only way to run a recording and adds the waits that these demand. Two
//! recordings that touch the same cache can therefore never be in flight unordered, whoever made them.
//!
//! # Lifetimes
//! A recording owns its plan and a plan owns, by reference count, every buffer it touches. Devices keep the buffers
//! of a submission until its ticket has signalled, so dropping a handle never frees memory that is in use.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DeviceError;
use crate::op::{Caps, DeviceClass};
use crate::plan::Plan;

/// A point in the work of one lane: signalled once everything up to it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The lane, unique in the process.
    pub lane: u64,
    /// Position in the lane's order.
    pub value: u64,
}

/// A number that no other buffer, lane or plan of this process has.
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Last writer of a buffer and its readers since.
#[derive(Debug, Default)]
struct Usage {
    writer: Option<Ticket>,
    readers: Vec<Ticket>,
}

struct BufferInner {
    id: u64,
    n_bytes: u64,
    label: String,
    usage: Mutex<Usage>,
    memory: Box<dyn Any + Send + Sync>,
}

/// Shared ownership of device memory.
#[derive(Clone)]
pub struct Buffer(Arc<BufferInner>);

impl Buffer {
    /// Wraps a backend's memory.
    pub fn new(n_bytes: u64, label: impl Into<String>, memory: Box<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(BufferInner {
            id: next_id(),
            n_bytes,
            label: label.into(),
            usage: Mutex::default(),
            memory,
        }))
    }

    /// Identity: never reused, so that whatever is keyed by it cannot go stale.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.0.n_bytes
    }

    /// What the memory is for.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// The backend's memory, if it is of this backend.
    pub fn memory<M: 'static>(&self) -> Option<&M> {
        self.0.memory.downcast_ref()
    }

    /// Tickets that must have signalled before the buffer may be accessed this way.
    pub fn hazards(&self, access: Access) -> Vec<Ticket> {
        let usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tickets: Vec<Ticket> = usage.writer.into_iter().collect();
        if access == Access::Write {
            tickets.extend(&usage.readers);
        }
        tickets
    }

    /// Notes that a submission accesses the buffer. Readers of one lane collapse into the latest.
    pub fn note(&self, access: Access, ticket: Ticket) {
        let mut usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        match access {
            Access::Write => {
                usage.writer = Some(ticket);
                usage.readers.clear();
            }
            Access::Read => {
                usage.readers.retain(|reader| reader.lane != ticket.lane);
                usage.readers.push(ticket);
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}#{} ({} bytes)",
            self.label(),
            self.id(),
            self.n_bytes()
        )
    }
}

/// Whether a submission only reads a buffer or may write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Contents stay.
    Read,
    /// Contents may change.
    Write,
}

/// Bytes to be written to a buffer before the first step of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Upload<'a> {
    /// Destination.
    pub buffer: &'a Buffer,
    /// Offset in bytes, a multiple of 4.
    pub offset: u64,
    /// Contents, a multiple of 4 bytes.
    pub bytes: &'a [u8],
}

/// A range to be copied to the host after the last step of a submission.
#[derive(Clone, Debug)]
pub struct Readback {
    /// Source.
    pub buffer: Buffer,
    /// Offset in bytes, a multiple of 4.
    pub offset: u64,
    /// Length in bytes, a multiple of 4.
    pub n_bytes: u64,
}

/// A plan prepared by a device for replay.
#[derive(Clone)]
pub struct Recording {
    /// The plan, and through it every buffer that the recording touches.
    pub plan: Arc<Plan>,
    /// What the backend prepared.
    pub native: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recording of {}", self.plan.label)
    }
}

/// Work in flight.
pub struct Pending {
    /// Signalled when the work and its read-back have finished.
    pub ticket: Ticket,
    /// What the backend needs to collect the read-back.
    pub native: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pending {:?}", self.ticket)
    }
}

/// Device memory by the engine's own account; drivers over-commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes allocated through the device.
    pub used: u64,
    /// Highest value of `used` so far.
    pub peak: u64,
    /// Bytes that may be allocated.
    pub total: u64,
}

/// Counters of the traffic between host and device since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Submissions.
    pub submits: u64,
    /// Bytes from host to device.
    pub uploaded: u64,
    /// Bytes from device to host.
    pub downloaded: u64,
    /// Kernel launches.
    pub launches: u64,
}

/// Something that executes plans.
pub trait Device: Send + Sync + fmt::Debug {
    /// The name users select it by, e.g. `wgpu:0`.
    fn name(&self) -> &str;

    /// What the hardware and driver call themselves.
    fn description(&self) -> String;

    /// Capabilities and limits.
    fn caps(&self) -> &Caps;

    /// Account of device memory.
    fn memory(&self) -> Memory;

    /// Traffic so far.
    fn traffic(&self) -> Traffic;

    /// Allocates zeroed memory. Lengths are rounded up to 4 bytes.
    ///
    /// # Errors
    /// Out of memory, by account or by the driver; device lost.
    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError>;

    /// Writes to a buffer, ordered before later submissions of this device. Streams large ranges in pieces.
    ///
    /// # Errors
    /// Device lost; a buffer of another device or a range outside it.
    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads from a buffer after all earlier work of this device.
    ///
    /// # Errors
    /// Device lost; a buffer of another device or a range outside it; deadline passed.
    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Prepares a plan for replay: compiles kernels, makes bindings.
    ///
    /// # Errors
    /// A kernel that does not compile; out of memory; device lost.
    fn record(&self, plan: &Arc<Plan>) -> Result<Recording, DeviceError>;

    /// Replays a recording after `waits`. Call [`submit`] instead: it knows the waits.
    ///
    /// # Errors
    /// Device lost; a wait on another device past its deadline.
    fn execute(
        &self,
        recording: &Recording,
        uploads: &[Upload<'_>],
        readback: Option<&Readback>,
        waits: &[Ticket],
    ) -> Result<Pending, DeviceError>;

    /// Waits for work in flight and returns the bytes of its read-back.
    ///
    /// # Errors
    /// Device lost; deadline passed.
    fn finish(&self, pending: Pending) -> Result<Vec<u8>, DeviceError>;

    /// Executes a recording once, timing each launch on the device: nanoseconds per launch, in plan order.
    /// `None` where the device cannot tell.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError>;
}

/// Replays a recording, ordered after everything that touched its buffers.
///
/// # Errors
/// As [`Device::execute`].
pub fn submit(
    device: &dyn Device,
    recording: &Recording,
    uploads: &[Upload<'_>],
    readback: Option<&Readback>,
) -> Result<Pending, DeviceError> {
    let touches = recording.plan.touches();
    let uploaded = uploads.iter().map(|upload| (upload.buffer, Access::Write));
    let read_back = readback
        .iter()
        .map(|readback| (&readback.buffer, Access::Read));
    let mut waits: Vec<Ticket> = touches
        .iter()
        .map(|(buffer, access)| (buffer, *access))
        .chain(uploaded.clone())
        .chain(read_back.clone())
        .flat_map(|(buffer, access)| buffer.hazards(access))
        .collect();
    waits.sort_unstable();
    waits.dedup_by(|later, earlier| {
        let same = later.lane == earlier.lane;
        if same {
            earlier.value = earlier.value.max(later.value);
        }
        same
    });
    let pending = device.execute(recording, uploads, readback, &waits)?;
    for (buffer, access) in touches
        .iter()
        .map(|(b, a)| (b, *a))
        .chain(read_back)
        .chain(uploaded)
    {
        buffer.note(access, pending.ticket);
    }
    Ok(pending)
}

/// Capabilities of the reference: no limits, whole values, no launches.
pub fn reference_caps() -> Caps {
    Caps {
        class: DeviceClass::Reference,
        max_binding_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        binding_alignment: 16,
        max_blocks_per_axis: 65_535,
        max_threads_per_block: 256,
        max_shared_bytes: 16 * 1024,
        max_bindings: 8,
        f16: false,
        warp: None,
        tensor_cores: false,
        memory_bytes: u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_a_reader_for_the_writer() {
        let buffer = Buffer::new(4, "cache", Box::new(()));
        let t = |lane, value| Ticket { lane, value };
        assert!(buffer.hazards(Access::Write).is_empty(), "untouched");
        buffer.note(Access::Write, t(1, 1));
        buffer.note(Access::Read, t(1, 2));
        buffer.note(Access::Read, t(2, 1));
        assert_eq!(
            buffer.hazards(Access::Read),
            [t(1, 1)],
            "reads do not wait for reads"
        );
        assert_eq!(
            buffer.hazards(Access::Write),
            [t(1, 1), t(1, 2), t(2, 1)],
            "a write waits for all"
        );
        buffer.note(Access::Write, t(2, 2));
        assert_eq!(
            buffer.hazards(Access::Write),
            [t(2, 2)],
            "the last writer waited for the others"
        );
    }
}
