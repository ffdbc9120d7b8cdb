//! A CUDA device as the device of the contract: one stream, one lane.
//!
//! # Lifetimes
//! The stream runs behind the host. [`Lane::in_flight`] keeps whatever the work in flight touches, in order, each
//! with an event behind it; entries go when their event is done.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gemel_core::device::{
    Buffer, Device, Memory, Pending, Readback, Recording, Ticket, Traffic, Upload, next_id,
};
use gemel_core::error::DeviceError;
use gemel_core::op::Caps;
use gemel_core::plan::Plan;

use crate::buffers::{self, Account, Allocation, DeviceMemory, GRANULE, Lease, Staging};
use crate::caps::{self, CudaInfo, CudaOptions};
use crate::error::{Fault, Gpu, lock};
use crate::launch::{self, Context, Event, Pinned, Stream};
use crate::modules::{self, Compiler, Modules, Nvrtc};
use crate::profile;
use crate::record::{self, Native, Tables};
use crate::source::Library;

/// Bytes that are copied at once: bounds the pinned memory of an upload.
const PIECE: usize = 8 << 20;

/// Pieces of one write that may be in flight: one is copied while the next is filled.
const PIECES_IN_FLIGHT: usize = 2;

/// Device memory that is left to the driver and to others: this share of what is free, at most [`SPARE_BYTES`].
const SPARE_SHARE: u64 = 16;
const SPARE_BYTES: u64 = 512 << 20;

/// Waits spin this long, then sleep between looks: a decode step is a few milliseconds, and a sleep costs 60 us.
const SPIN: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// A device of CUDA.
#[derive(Debug)]
pub struct CudaDevice {
    // In the order in which they must go: the lane waits for its work, everything else may go then.
    lane_state: Mutex<Lane>,
    pub(crate) gpu: Gpu,
    pub(crate) lane: u64,
    pub(crate) caps: Caps,
    pub(crate) context: Arc<Context>,
    pub(crate) account: Account,
    pub(crate) modules: Modules,
    pub(crate) tables: Tables,
    staging: Arc<Staging>,
    info: CudaInfo,
    traffic: Mutex<Traffic>,
}

/// What a submission keeps alive.
type Kept = Vec<Arc<dyn Any + Send + Sync>>;

/// The stream and what is in it.
struct Lane {
    stream: Stream,
    in_flight: VecDeque<(Arc<Event>, Kept)>,
    submitted: u64,
    deadline: Duration,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("in_flight", &self.in_flight.len())
            .field("submitted", &self.submitted)
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Lets go of what has finished.
    fn reap(&mut self) -> Result<(), Fault> {
        while let Some((event, _)) = self.in_flight.front() {
            if !event.is_done()? {
                break;
            }
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

impl Drop for Lane {
    /// Waits for the work in flight. What does not finish keeps its memory for good: a leak, but no corruption.
    /// Work of a lost device has ended with it.
    fn drop(&mut self) {
        if let Some((event, _)) = self.in_flight.back()
            && matches!(wait(event, self.deadline), Ok(false))
        {
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
    }
}

/// Waits for an event; false if the deadline passed.
fn wait(event: &Event, deadline: Duration) -> Result<bool, Fault> {
    let started = Instant::now();
    while !event.is_done()? {
        let elapsed = started.elapsed();
        if elapsed > deadline {
            return Ok(false);
        }
        if elapsed < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
    Ok(true)
}

/// What `finish` needs.
struct InFlight {
    event: Arc<Event>,
    label: String,
    /// The copy of the read-back and its length.
    read: Option<(Arc<Lease>, usize)>,
}

impl CudaDevice {
    /// Opens the device that the options select.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] says what there is or what to install; [`DeviceError::Driver`] if the driver
    /// refuses.
    pub fn open(options: &CudaOptions) -> Result<Self, DeviceError> {
        let info = caps::choose(options, caps::enumerate())?;
        let compiler = Nvrtc::new(info.compute).map_err(|message| DeviceError::Driver {
            device: info.name.clone(),
            message,
        })?;
        Self::with_compiler(options, info, Box::new(compiler))
    }

    pub(crate) fn with_compiler(
        options: &CudaOptions,
        mut info: CudaInfo,
        compiler: Box<dyn Compiler>,
    ) -> Result<Self, DeviceError> {
        let gpu = Gpu::new(info.name.clone(), options.deadline);
        let failed = |fault: Fault| gpu.fault("opening the device", &fault);
        let context = Context::open(info.ordinal).map_err(failed)?;
        let (free, _) = context.memory().map_err(failed)?;
        let limit = options
            .limits
            .as_ref()
            .and_then(|limits| limits.memory_bytes);
        let memory_bytes = limit.unwrap_or(free - (free / SPARE_SHARE).min(SPARE_BYTES));
        info.caps.memory_bytes = memory_bytes;
        info.caps.max_buffer_bytes = info.caps.max_buffer_bytes.min(memory_bytes.max(GRANULE));
        let stream = Stream::new(&context).map_err(failed)?;
        let library = options
            .sources
            .iter()
            .fold(Library::embedded(), |library, (name, text)| {
                library.with(name, text)
            });
        Ok(Self {
            lane_state: Mutex::new(Lane {
                stream,
                in_flight: VecDeque::new(),
                submitted: 0,
                deadline: options.deadline,
            }),
            lane: next_id(),
            caps: info.caps.clone(),
            account: Account::new(memory_bytes),
            modules: Modules::new(
                library,
                compiler,
                options.cache.clone().or_else(modules::default_cache),
                options.progress.clone(),
            ),
            tables: Tables::default(),
            staging: Staging::new(context.clone()),
            context,
            info,
            traffic: Mutex::default(),
            gpu,
        })
    }

    /// The GPU that the device runs on.
    pub fn info(&self) -> &CudaInfo {
        &self.info
    }

    /// Gives the device up: from now on everything fails with [`DeviceError::Lost`], as if it had been unplugged.
    pub fn destroy(&self) {
        self.gpu.lose("it was given up");
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Traffic)) {
        add(&mut lock(&self.traffic));
    }

    pub(crate) fn native<'a>(&self, recording: &'a Recording) -> Result<&'a Native, DeviceError> {
        recording
            .native
            .downcast_ref::<Native>()
            .filter(|native| native.lane == self.lane)
            .ok_or_else(|| {
                let label = &recording.plan.label;
                self.gpu
                    .usage(format!("plan {label} was recorded by another device"))
            })
    }

    fn words<'a>(
        &self,
        buffer: &'a Buffer,
        offset: u64,
        n_bytes: u64,
    ) -> Result<&'a Arc<Allocation>, DeviceError> {
        if !offset.is_multiple_of(4) || !n_bytes.is_multiple_of(4) {
            return Err(self.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} are not whole words of 4 bytes"
            )));
        }
        buffers::allocation(&self.gpu, self.lane, buffer, offset, n_bytes)
    }

    /// Puts work into the stream with an event behind it. What `kept` holds lives until the event is done.
    ///
    /// After a failure part of the work may still be in the stream, so what it touches is kept then, too.
    pub(crate) fn enqueue(
        &self,
        what: &str,
        kept: Kept,
        work: impl FnOnce(&Stream) -> Result<(), Fault>,
    ) -> Result<(Arc<Event>, u64), DeviceError> {
        let mut lane = lock(&self.lane_state);
        self.enqueue_locked(&mut lane, what, kept, work)
    }

    fn enqueue_locked(
        &self,
        lane: &mut MutexGuard<'_, Lane>,
        what: &str,
        kept: Kept,
        work: impl FnOnce(&Stream) -> Result<(), Fault>,
    ) -> Result<(Arc<Event>, u64), DeviceError> {
        self.gpu.check()?;
        let failed = |fault: Fault| self.gpu.fault(what, &fault);
        lane.reap().map_err(failed)?;
        let event = Arc::new(Event::new(&self.context, false).map_err(failed)?);
        let worked = work(&lane.stream);
        let recorded = lane.stream.record(&event);
        let has_event = recorded.is_ok();
        let result = worked.and(recorded).map_err(failed);
        if has_event {
            lane.in_flight.push_back((event.clone(), kept));
        } else if self.gpu.check().is_ok() {
            // Without an event nobody can know when the work has finished. That of a lost device has.
            std::mem::forget(kept);
        }
        result?;
        lane.submitted += 1;
        let value = lane.submitted;
        Ok((event, value))
    }

    pub(crate) fn wait(&self, event: &Event, what: &str) -> Result<(), DeviceError> {
        self.gpu.check()?;
        match wait(event, self.gpu.deadline) {
            Ok(true) => self.gpu.check(),
            Ok(false) => Err(self.gpu.timeout(what)),
            Err(fault) => Err(self.gpu.fault(what, &fault)),
        }
    }

    /// Allocates zeroed memory on the account.
    pub(crate) fn allocate(
        &self,
        n_bytes: u64,
        label: &str,
    ) -> Result<Arc<Allocation>, DeviceError> {
        self.gpu.check()?;
        let out_of_memory = || {
            let memory = self.account.read();
            DeviceError::OutOfMemory {
                device: self.gpu.name.clone(),
                what: label.to_owned(),
                needed: n_bytes,
                free: memory.total.saturating_sub(memory.used),
                total: memory.total,
            }
        };
        let size = n_bytes
            .max(4)
            .checked_next_multiple_of(GRANULE)
            .ok_or_else(out_of_memory)?;
        let reserved = if let Some(reserved) = self.account.take(size) {
            reserved
        } else {
            // Work in flight may hold the last reference to memory that is free otherwise.
            self.drain(label)?;
            self.account.take(size).ok_or_else(out_of_memory)?
        };
        let memory = match launch::Memory::new(&self.context, size as usize) {
            Ok(memory) => memory,
            Err(fault) if fault.is_out_of_memory() => {
                drop(reserved);
                return Err(out_of_memory());
            }
            Err(fault) => return Err(self.gpu.fault(&format!("allocating {label}"), &fault)),
        };
        let allocation = Arc::new(Allocation {
            memory,
            _reserved: reserved,
        });
        let kept: Kept = vec![allocation.clone()];
        self.enqueue(label, kept, |stream| stream.clear(&allocation.memory))?;
        Ok(allocation)
    }

    /// Waits for all work in flight and lets go of what it held.
    fn drain(&self, what: &str) -> Result<(), DeviceError> {
        let last = lock(&self.lane_state)
            .in_flight
            .back()
            .map(|(event, _)| event.clone());
        if let Some(event) = last {
            self.wait(&event, what)?;
            lock(&self.lane_state)
                .reap()
                .map_err(|fault| self.gpu.fault(what, &fault))?;
        }
        Ok(())
    }

    /// Pinned memory that begins with these bytes.
    fn stage(&self, bytes: &[u8], padding: usize) -> Result<Arc<Lease>, DeviceError> {
        let n_bytes = bytes.len() + padding;
        let mut lease = self.pinned(n_bytes)?;
        if let Some(target) = lease
            .pinned_mut()
            .and_then(|pinned| pinned.bytes_mut().get_mut(..n_bytes))
        {
            target[..bytes.len()].copy_from_slice(bytes);
            target[bytes.len()..].fill(0);
        }
        Ok(Arc::new(lease))
    }

    fn pinned(&self, n_bytes: usize) -> Result<Lease, DeviceError> {
        self.staging
            .take(n_bytes)
            .map_err(|fault| self.gpu.fault("staging", &fault))
    }

    /// Copies staged bytes to the device; the piece's event comes back.
    pub(crate) fn upload(
        &self,
        target: &Arc<Allocation>,
        offset: u64,
        bytes: &[u8],
        padding: usize,
        label: &str,
    ) -> Result<Arc<Event>, DeviceError> {
        let lease = self.stage(bytes, padding)?;
        let kept: Kept = vec![lease.clone(), target.clone()];
        let (event, _) = self.enqueue(label, kept, |stream| {
            with(&lease, |pinned| {
                stream.upload(pinned, &target.memory, offset, bytes.len() + padding)
            })
        })?;
        Ok(event)
    }

    /// Waits for work and takes its read-back.
    fn collect(&self, work: &InFlight) -> Result<Vec<u8>, DeviceError> {
        self.wait(&work.event, &work.label)?;
        let Some((lease, n_bytes)) = &work.read else {
            return Ok(Vec::new());
        };
        let bytes = lease
            .pinned()
            .and_then(|pinned| pinned.bytes().get(..*n_bytes))
            .unwrap_or_default()
            .to_vec();
        self.count(|traffic| traffic.downloaded += *n_bytes as u64);
        Ok(bytes)
    }

    /// Puts work and a copy of a range to the host behind it into the stream.
    fn submit_and_read(
        &self,
        label: &str,
        mut kept: Kept,
        work: impl FnOnce(&Stream) -> Result<(), Fault>,
        read: Option<(&Arc<Allocation>, u64, usize)>,
    ) -> Result<(InFlight, u64), DeviceError> {
        let mut lane = lock(&self.lane_state);
        let mut target = match read {
            Some((_, _, n_bytes)) => Some(self.pinned(n_bytes)?),
            None => None,
        };
        kept.extend(read.map(|(source, _, _)| source.clone() as Arc<dyn Any + Send + Sync>));
        let enqueued = self.enqueue_locked(&mut lane, label, kept, |stream| {
            work(stream)?;
            match (read, target.as_mut().and_then(Lease::pinned_mut)) {
                (Some((source, offset, n_bytes)), Some(pinned)) => {
                    stream.download(&source.memory, offset, n_bytes, pinned)
                }
                _ => Ok(()),
            }
        });
        let (event, value) = match enqueued {
            Ok(enqueued) => enqueued,
            Err(error) => {
                // The copy may be under way all the same, unless the device is lost.
                if self.gpu.check().is_ok() {
                    std::mem::forget(target);
                }
                return Err(error);
            }
        };
        let read = target
            .map(Arc::new)
            .zip(read.map(|(_, _, n_bytes)| n_bytes));
        if let Some((lease, _)) = &read
            && let Some((_, kept)) = lane.in_flight.back_mut()
        {
            kept.push(lease.clone());
        }
        let work = InFlight {
            event,
            label: label.to_owned(),
            read,
        };
        Ok((work, value))
    }
}

/// Calls with the pinned memory of a lease, which has it as long as anyone can hold the lease.
fn with(lease: &Lease, call: impl FnOnce(&Pinned) -> Result<(), Fault>) -> Result<(), Fault> {
    lease.pinned().map_or(Ok(()), call)
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn description(&self) -> String {
        self.info.to_string()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn memory(&self) -> Memory {
        self.account.read()
    }

    fn traffic(&self) -> Traffic {
        *lock(&self.traffic)
    }

    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let allocation = self.allocate(n_bytes, label)?;
        let memory = DeviceMemory {
            allocation,
            lane: self.lane,
        };
        let n_bytes = n_bytes.max(4).next_multiple_of(4);
        Ok(Buffer::new(n_bytes, label, Box::new(memory)))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.gpu.check()?;
        let n_bytes = bytes.len() as u64;
        buffers::allocation(&self.gpu, self.lane, buffer, offset, n_bytes)?;
        // A length that is not whole words can only end where the buffer ends: the rest is padding.
        let padded = n_bytes.next_multiple_of(4);
        if padded != n_bytes && offset + padded != buffer.n_bytes() {
            return Err(self.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} end inside a word of 4 bytes"
            )));
        }
        let target = self.words(buffer, offset, padded)?;
        let mut pieces: VecDeque<Arc<Event>> = VecDeque::new();
        let mut at = offset;
        for piece in bytes.chunks(PIECE) {
            if pieces.len() >= PIECES_IN_FLIGHT
                && let Some(event) = pieces.pop_front()
            {
                self.wait(&event, "an upload")?;
                lock(&self.lane_state)
                    .reap()
                    .map_err(|fault| self.gpu.fault("an upload", &fault))?;
            }
            let padding = piece.len().next_multiple_of(4) - piece.len();
            pieces.push_back(self.upload(target, at, piece, padding, buffer.label())?);
            at += piece.len() as u64;
        }
        self.count(|traffic| traffic.uploaded += n_bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.gpu.check()?;
        let n_bytes = out.len() as u64;
        let source = buffers::allocation(&self.gpu, self.lane, buffer, offset, n_bytes)?;
        let mut at = offset;
        for piece in out.chunks_mut(PIECE) {
            let (work, _) = self.submit_and_read(
                buffer.label(),
                Kept::new(),
                |_| Ok(()),
                Some((source, at, piece.len())),
            )?;
            piece.copy_from_slice(&self.collect(&work)?);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn record(&self, plan: &Arc<Plan>) -> Result<Recording, DeviceError> {
        Ok(Recording {
            plan: plan.clone(),
            native: Arc::new(record::record(self, plan)?),
        })
    }

    fn execute(
        &self,
        recording: &Recording,
        uploads: &[Upload<'_>],
        readback: Option<&Readback>,
        waits: &[Ticket],
    ) -> Result<Pending, DeviceError> {
        self.gpu.check()?;
        let native = self.native(recording)?;
        let label = format!("plan {}", recording.plan.label);
        // The stream runs submissions in order, which is all that a wait on this lane asks for.
        if let Some(wait) = waits.iter().find(|wait| wait.lane != self.lane) {
            return Err(self.gpu.usage(format!(
                "{label} cannot wait for lane {} of another device",
                wait.lane
            )));
        }
        // The recording owns its plan's buffers; those of uploads and read-back may be others.
        let mut kept: Kept = vec![recording.native.clone(), recording.plan.clone()];
        let mut writes = Vec::with_capacity(uploads.len());
        for upload in uploads {
            let n_bytes = upload.bytes.len() as u64;
            let target = self.words(upload.buffer, upload.offset, n_bytes)?;
            if n_bytes == 0 {
                continue;
            }
            let lease = self.stage(upload.bytes, 0)?;
            kept.push(lease.clone());
            kept.push(target.clone());
            writes.push((lease, target, upload.offset, upload.bytes.len()));
        }
        let read = match readback {
            Some(readback) if readback.n_bytes > 0 => {
                let source = self.words(&readback.buffer, readback.offset, readback.n_bytes)?;
                Some((source, readback.offset, readback.n_bytes as usize))
            }
            _ => None,
        };
        let (work, value) = self.submit_and_read(
            &label,
            kept,
            |stream| {
                for (lease, target, offset, n_bytes) in &writes {
                    with(lease, |pinned| {
                        stream.upload(pinned, &target.memory, *offset, *n_bytes)
                    })?;
                }
                match &native.graph {
                    Some(graph) => stream.replay(graph),
                    None => Ok(()),
                }
            },
            read,
        )?;
        self.count(|traffic| {
            traffic.submits += 1;
            traffic.launches += native.kernels.len() as u64;
            traffic.uploaded += uploads.iter().map(|u| u.bytes.len() as u64).sum::<u64>();
        });
        Ok(Pending {
            ticket: Ticket {
                lane: self.lane,
                value,
            },
            native: Some(Box::new(work)),
        })
    }

    fn finish(&self, pending: Pending) -> Result<Vec<u8>, DeviceError> {
        let work = pending
            .native
            .and_then(|native| native.downcast::<InFlight>().ok())
            .filter(|_| pending.ticket.lane == self.lane);
        match work {
            Some(work) => self.collect(&work),
            None => Err(self.gpu.usage("the pending work is of another device")),
        }
    }

    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        profile::profile(self, recording).map(Some)
    }
}
