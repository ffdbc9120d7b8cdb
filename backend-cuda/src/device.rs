//! A CUDA device as the device of the contract: one stream, one lane.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use gemel_core::device::{
    Access, Account, Buffer, Copied, Device, Memory, Pending, Readback, Recording, Ticket, Traffic,
    Transfer, Upload, ordered,
};
use gemel_core::error::DeviceError;
use gemel_core::op::Caps;
use gemel_core::plan::Plan;

use crate::buffers::{self, Allocation, DeviceMemory, GRANULE};
use crate::caps::{self, CudaInfo, CudaOptions};
use crate::error::{Fault, Gpu, lock};
use crate::lane::{self, InFlight, Kept, Lane};
use crate::launch::{self, Context, Event};
use crate::modules::{self, Compiler, Modules, Nvrtc};
use crate::peer::{self, End, Route, Routes};
use crate::profile;
use crate::record::{self, Native, Tables};
use crate::source;

/// Bytes that are copied at once: bounds the pinned memory of an upload.
const PIECE: usize = 8 << 20;

/// Pieces of one write that may be in flight: one is copied while the next is filled.
const PIECES_IN_FLIGHT: usize = 2;

/// Device memory that is left to the driver and to others: this share of what is free, at most [`SPARE_BYTES`].
const SPARE_SHARE: u64 = 16;
const SPARE_BYTES: u64 = 512 << 20;

/// A device of CUDA.
#[derive(Debug)]
pub struct CudaDevice {
    // The first to go: it waits for its work, everything else may go then.
    pub(crate) lane: Arc<Lane>,
    pub(crate) caps: Caps,
    pub(crate) account: Account,
    pub(crate) modules: Modules,
    pub(crate) tables: Tables,
    info: CudaInfo,
    checked: bool,
    traffic: Mutex<Traffic>,
}

impl CudaDevice {
    /// Opens the device that the options select.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] says what there is or what to install; [`DeviceError::Driver`] if the driver
    /// refuses.
    pub fn open(options: &CudaOptions) -> Result<Self, DeviceError> {
        let info = caps::choose(options, caps::enumerate())?;
        let driver = |message| DeviceError::Driver {
            device: info.name.clone(),
            message,
        };
        let version = launch::version().map_err(|fault| driver(fault.to_string()))?;
        let compiler = Nvrtc::new(info.compute, Some(version)).map_err(driver)?;
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
        let library = options
            .sources
            .iter()
            .fold(source::embedded(), |library, (name, text)| {
                library.with(name, text)
            });
        let lane = Lane::open(
            Gpu::new(info.name.clone(), options.deadline),
            &context,
            Routes::new(options.peer_access),
        )
        .map_err(failed)?;
        peer::connect(&lane);
        Ok(Self {
            lane,
            caps: info.caps.clone(),
            account: Account::new(memory_bytes),
            modules: Modules::new(
                library,
                compiler,
                options.cache.clone().or_else(modules::default_cache),
                options.progress.clone(),
            ),
            tables: Tables::default(),
            info,
            checked: options.checked,
            traffic: Mutex::default(),
        })
    }

    /// The GPU that the device runs on.
    pub fn info(&self) -> &CudaInfo {
        &self.info
    }

    /// Gives the device up: from now on everything fails with [`DeviceError::Lost`], as if it had been unplugged.
    pub fn destroy(&self) {
        self.lane.gpu.lose("it was given up");
    }

    /// How copies from another device come to this one.
    pub fn route_from(&self, source: &Self) -> Route {
        if source.lane.id == self.lane.id {
            return Route::Same;
        }
        self.lane.routes.from(source.lane.id)
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Traffic)) {
        add(&mut lock(&self.traffic));
    }

    pub(crate) fn native<'a>(&self, recording: &'a Recording) -> Result<&'a Native, DeviceError> {
        recording
            .native
            .downcast_ref::<Native>()
            .filter(|native| native.lane == self.lane.id)
            .ok_or_else(|| {
                let label = &recording.plan.label;
                self.lane
                    .gpu
                    .usage(format!("plan {label} was recorded by another device"))
            })
    }

    fn words<'a>(
        &self,
        buffer: &'a Buffer,
        offset: u64,
        n_bytes: u64,
    ) -> Result<&'a Arc<Allocation>, DeviceError> {
        buffers::words(&self.lane.gpu, self.lane.id, buffer, offset, n_bytes)
    }

    /// Waits for work and takes its read-back.
    fn collect(&self, work: &InFlight) -> Result<Vec<u8>, DeviceError> {
        let bytes = self.lane.collect(work)?;
        self.count(|traffic| traffic.downloaded += bytes.len() as u64);
        Ok(bytes)
    }

    /// Allocates zeroed memory on the account; it is zero behind the ticket.
    pub(crate) fn allocate(
        &self,
        n_bytes: u64,
        label: &str,
    ) -> Result<(Arc<Allocation>, Ticket), DeviceError> {
        self.lane.gpu.check()?;
        let exhausted = || self.account.exhausted(&self.lane.gpu.name, label, n_bytes);
        let size = n_bytes
            .max(4)
            .checked_next_multiple_of(GRANULE)
            .ok_or_else(exhausted)?;
        let reserved = if let Some(reserved) = self.account.take(size) {
            reserved
        } else {
            // Work in flight may hold the last reference to memory that is free otherwise.
            self.lane.drain(label)?;
            self.account.take(size).ok_or_else(exhausted)?
        };
        let mut made = launch::Memory::new(&self.lane.context, size as usize);
        if matches!(&made, Err(fault) if fault.is_out_of_memory()) {
            self.lane.drain(label)?;
            made = launch::Memory::new(&self.lane.context, size as usize);
        }
        let memory = match made {
            Ok(memory) => memory,
            Err(fault) if fault.is_out_of_memory() => {
                drop(reserved);
                let mut error = exhausted();
                if let DeviceError::OutOfMemory { free, .. } = &mut error {
                    // The account believes in more than there is.
                    let left = self.lane.context.memory().map_or(0, |(free, _)| free);
                    *free = left.min(*free);
                }
                return Err(error);
            }
            Err(fault) => return Err(self.lane.gpu.fault(&format!("allocating {label}"), &fault)),
        };
        let allocation = Arc::new(Allocation {
            memory,
            _reserved: reserved,
        });
        let kept: Kept = vec![allocation.clone()];
        let (_, value) = self
            .lane
            .enqueue(label, &[], kept, |stream| stream.clear(&allocation.memory))?;
        Ok((allocation, self.lane.ticket(value)))
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.lane.gpu.name
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

    fn lane(&self) -> u64 {
        self.lane.id
    }

    /// Any lane of this backend: streams wait for events of all contexts of a process.
    fn orders(&self, lane: u64) -> bool {
        lane == self.lane.id || lane::find(lane).is_some()
    }

    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let (allocation, ticket) = self.allocate(n_bytes, label)?;
        let memory = DeviceMemory {
            allocation,
            lane: self.lane.id,
        };
        let n_bytes = n_bytes.max(4).next_multiple_of(4);
        let buffer = Buffer::new(n_bytes, label, Box::new(memory));
        buffer.note(Access::Write, ticket);
        Ok(buffer)
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.lane.gpu.check()?;
        let n_bytes = bytes.len() as u64;
        buffers::allocation(&self.lane.gpu, self.lane.id, buffer, offset, n_bytes)?;
        // A length that is not whole words can only end where the buffer ends: the rest is padding.
        let padded = n_bytes.next_multiple_of(4);
        if padded != n_bytes && offset + padded != buffer.n_bytes() {
            return Err(self.lane.gpu.usage(format!(
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
                self.lane.wait(&event, "an upload")?;
                self.lane.reap("an upload")?;
            }
            let padding = piece.len().next_multiple_of(4) - piece.len();
            let label = buffer.label();
            let event = ordered(self, label, [(buffer, Access::Write)], |waits| {
                let (event, value) = self.lane.upload(target, at, piece, padding, label, waits)?;
                Ok((event, self.lane.ticket(value)))
            })?;
            pieces.push_back(event);
            at += piece.len() as u64;
        }
        self.count(|traffic| traffic.uploaded += n_bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.lane.gpu.check()?;
        let n_bytes = out.len() as u64;
        let source = buffers::allocation(&self.lane.gpu, self.lane.id, buffer, offset, n_bytes)?;
        let mut at = offset;
        for piece in out.chunks_mut(PIECE) {
            let label = buffer.label();
            let work = ordered(self, label, [(buffer, Access::Read)], |waits| {
                let read = Some((source, at, piece.len()));
                let (work, value) =
                    self.lane
                        .submit_and_read(label, waits, Kept::new(), |_| Ok(()), read)?;
                Ok((work, self.lane.ticket(value)))
            })?;
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
        self.lane.gpu.check()?;
        let native = self.native(recording)?;
        let label = &native.label;
        // The recording owns its plan's buffers; those of uploads and read-back may be others.
        let mut kept: Kept = vec![recording.native.clone(), recording.plan.clone()];
        let mut writes = Vec::with_capacity(uploads.len());
        for upload in uploads {
            let n_bytes = upload.bytes.len() as u64;
            let target = self.words(upload.buffer, upload.offset, n_bytes)?;
            if n_bytes == 0 {
                continue;
            }
            let lease = self.lane.stage(upload.bytes, 0)?;
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
        let (work, value) = self.lane.submit_and_read(
            label,
            waits,
            kept,
            |stream| {
                for (lease, target, offset, n_bytes) in &writes {
                    stream.upload(lease.pinned(), &target.memory, *offset, *n_bytes)?;
                }
                match &native.graph {
                    Some(_) if self.checked => stream.launch_each(&native.kernels),
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
            ticket: self.lane.ticket(value),
            native: Some(Box::new(work)),
        })
    }

    fn finish(&self, pending: Pending) -> Result<Vec<u8>, DeviceError> {
        let work = pending
            .native
            .and_then(|native| native.downcast::<InFlight>().ok())
            .filter(|_| pending.ticket.lane == self.lane.id);
        match work {
            Some(work) => self.collect(&work),
            None => Err(self.lane.gpu.usage("the pending work is of another device")),
        }
    }

    fn copy(&self, transfer: &Transfer<'_>) -> Result<Option<Copied>, DeviceError> {
        let n_bytes = transfer.n_bytes;
        let target = self.words(transfer.target, transfer.target_offset, n_bytes)?;
        let Some(owner) = transfer
            .source
            .memory::<DeviceMemory>()
            .and_then(|memory| lane::find(memory.lane))
        else {
            return Ok(None);
        };
        let (offset, gpu) = (transfer.source_offset, &owner.gpu);
        let source = buffers::words(gpu, owner.id, transfer.source, offset, n_bytes)?;
        let from = End {
            memory: source,
            offset,
            waits: transfer.source_waits,
        };
        let to = End {
            memory: target,
            offset: transfer.target_offset,
            waits: transfer.target_waits,
        };
        peer::copy(&owner, &self.lane, &from, &to, n_bytes).map(Some)
    }

    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        profile::profile(self, recording).map(Some)
    }
}
