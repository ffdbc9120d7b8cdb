//! The device contract: memory, recordings, submissions and the tickets that order them.
//!
//! # Who validates
//! The caller, once: shapes when a graph is built, limits when it is planned. A device returns only what a caller
//! cannot foresee: out of memory, device lost, a kernel that does not compile, a wait past its deadline.
//!
//! # Order
//! A device executes submissions of one lane in order. Every [`Buffer`] remembers the tickets of its last writer and
//! of the readers since. [`submit`] is the only way to run a recording and [`copy_across`] the only way to copy between
//! buffers; they add the waits that these demand, and backends do the same for reads and writes by [`ordered`]. Two
//! recordings that touch the same cache can therefore never be in flight unordered, whoever made them, on whatever
//! device. A device orders its work behind lanes that it [can](Device::orders) wait for itself; for others the host
//! waits.
//!
//! # Lifetimes
//! A recording owns its plan and a plan owns, by reference count, every buffer it touches. Devices keep the buffers
//! of a submission until its ticket has signalled, so dropping a handle never frees memory that is in use.

mod account;
mod buffer;
#[cfg(feature = "contract")]
pub mod contract;
mod health;
pub mod lane;
mod order;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DeviceError;
use crate::op::{Caps, DeviceClass};
use crate::plan::Plan;

pub use account::{Account, Reserved};
pub use buffer::{Access, Buffer};
pub use health::Health;
pub use lane::Ticket;
pub use order::{Place, copy_across, ordered, submit};

/// A number that no other buffer, lane or plan of this process has.
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
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

/// A copy between two buffers, checked for order by [`copy_across`].
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// What is read.
    pub source: &'a Buffer,
    /// Offset in bytes, a multiple of 4.
    pub source_offset: u64,
    /// What the source has to wait for, all of lanes that the target's device orders.
    pub source_waits: &'a [Ticket],
    /// What is written.
    pub target: &'a Buffer,
    /// Offset in bytes, a multiple of 4.
    pub target_offset: u64,
    /// What the target has to wait for, all of lanes that its device orders.
    pub target_waits: &'a [Ticket],
    /// Length in bytes, a multiple of 4.
    pub n_bytes: u64,
}

/// A copy under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Signalled when the source may be written again.
    pub read: Ticket,
    /// Signalled when the target may be read.
    pub written: Ticket,
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

    /// The lane of its submissions, one of [`next_id`].
    fn lane(&self) -> u64;

    /// Whether the device itself can order its work behind that of a lane: its own, and those of devices that share
    /// events with it.
    fn orders(&self, lane: u64) -> bool {
        lane == self.lane()
    }

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

    /// Replays a recording after `waits`, all of lanes that it [orders](Self::orders). Call [`submit`] instead: it
    /// knows the waits.
    ///
    /// # Errors
    /// Device lost.
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

    /// Copies to a buffer of this device without going through the caller's memory, if there is such a way from the
    /// source's device. Call [`copy_across`] instead: it knows the waits, and another way.
    ///
    /// # Errors
    /// A range outside its buffer; device lost.
    fn copy(&self, transfer: &Transfer<'_>) -> Result<Option<Copied>, DeviceError>;

    /// Executes a recording once, timing each launch on the device: nanoseconds per launch, in plan order.
    /// `None` where the device cannot tell.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError>;
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
        bf16_tensor_cores: false,
        memory_bytes: u64::MAX,
    }
}
