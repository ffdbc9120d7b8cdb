//! A wgpu device as the device of the contract: one queue, one lane.

use std::sync::{Arc, Mutex};

use gemel_core::device::{
    Access, Account, Buffer, Copied, Device, Memory, Pending, Readback, Recording, Ticket, Traffic,
    Transfer, Upload, ordered,
};
use gemel_core::error::DeviceError;
use gemel_core::op::Caps;
use gemel_core::plan::Plan;

use crate::buffers::{self, DeviceMemory};
use crate::caps::{self, AdapterInfo, WgpuOptions};
use crate::error::{Gpu, lock};
use crate::lane::{InFlight, Lane, PIECE};
use crate::pipelines::Pipelines;
use crate::profile;
use crate::record::{self, Native, Tables};
use crate::source;

/// A device of wgpu.
#[derive(Debug)]
pub struct WgpuDevice {
    pub(crate) lane: Arc<Lane>,
    pub(crate) caps: Caps,
    pub(crate) account: Account,
    pub(crate) pipelines: Pipelines,
    pub(crate) tables: Tables,
    info: AdapterInfo,
    traffic: Mutex<Traffic>,
}

impl WgpuDevice {
    /// Opens the device that the options select.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] says what there is or what to install; [`DeviceError::Driver`] if the driver
    /// refuses.
    pub fn open(options: &WgpuOptions) -> Result<Self, DeviceError> {
        let chosen = caps::choose(options)?;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some(&chosen.info.name),
            required_features: chosen.features,
            required_limits: chosen.limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) = pollster::block_on(chosen.adapter.request_device(&descriptor))
            .map_err(|error| DeviceError::Driver {
                device: chosen.info.name.clone(),
                message: format!("cannot be opened: {error}"),
            })?;
        let library = options
            .sources
            .iter()
            .fold(source::embedded(), |library, (name, text)| {
                library.with(name, text)
            });
        Ok(Self {
            lane: Lane::open(Gpu::new(
                chosen.info.name.clone(),
                device,
                queue,
                options.deadline,
            )),
            caps: chosen.info.caps.clone(),
            account: Account::new(chosen.info.caps.memory_bytes),
            pipelines: Pipelines::new(library, options.checked, options.progress.clone()),
            tables: Tables::default(),
            info: chosen.info,
            traffic: Mutex::default(),
        })
    }

    /// The adapter that the device runs on.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.info
    }

    /// Gives the device up: from now on everything fails with [`DeviceError::Lost`], as if it had been unplugged.
    pub fn destroy(&self) {
        self.lane.gpu.device.destroy();
        // The callback that reports the loss runs inside a poll; an error of the poll says the same.
        let _ = self.lane.gpu.device.poll(wgpu::PollType::Poll);
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

    fn raw<'a>(
        &self,
        buffer: &'a Buffer,
        offset: u64,
        n_bytes: u64,
    ) -> Result<&'a wgpu::Buffer, DeviceError> {
        if !offset.is_multiple_of(4) || !n_bytes.is_multiple_of(4) {
            return Err(self.lane.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} are not whole words of 4 bytes"
            )));
        }
        buffers::raw(&self.lane.gpu, self.lane.id, buffer, offset, n_bytes)
    }

    /// Waits for work and takes its read-back.
    fn collect(&self, work: InFlight) -> Result<Vec<u8>, DeviceError> {
        let bytes = self.lane.collect(work)?;
        self.count(|traffic| traffic.downloaded += bytes.len() as u64);
        Ok(bytes)
    }
}

impl Device for WgpuDevice {
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

    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC;
        let memory = buffers::alloc(
            &self.lane.gpu,
            &self.account,
            self.lane.id,
            n_bytes,
            label,
            usage,
        )?;
        let n_bytes = n_bytes.max(4).next_multiple_of(4);
        Ok(Buffer::new(n_bytes, label, Box::new(memory)))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.lane.gpu.check()?;
        let n_bytes = bytes.len() as u64;
        buffers::raw(&self.lane.gpu, self.lane.id, buffer, offset, n_bytes)?;
        // A length that is not whole words can only end where the buffer ends: the rest is padding.
        let padded = n_bytes.next_multiple_of(4);
        if padded != n_bytes && offset + padded != buffer.n_bytes() {
            return Err(self.lane.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} end inside a word of 4 bytes"
            )));
        }
        let target = self.raw(buffer, offset, padded)?;
        let whole = bytes.len() & !3;
        let mut at = offset;
        let put = |at: u64, words: &[u8]| {
            ordered(self, buffer.label(), [(buffer, Access::Write)], |_| {
                let value = self.lane.write(target, at, words)?;
                Ok(((), self.lane.ticket(value)))
            })
        };
        for piece in bytes[..whole].chunks(PIECE as usize) {
            put(at, piece)?;
            at += piece.len() as u64;
        }
        if whole < bytes.len() {
            let mut word = [0; 4];
            word[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            put(at, &word)?;
        }
        self.count(|traffic| traffic.uploaded += n_bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.lane.gpu.check()?;
        buffers::raw(
            &self.lane.gpu,
            self.lane.id,
            buffer,
            offset,
            out.len() as u64,
        )?;
        let mut at = offset;
        for piece in out.chunks_mut(PIECE as usize) {
            let first = at & !3;
            let end = (at + piece.len() as u64).next_multiple_of(4);
            let source = self.raw(buffer, first, end - first)?;
            let label = buffer.label();
            let work = ordered(self, label, [(buffer, Access::Read)], |_| {
                let read = Some((source, first, end - first));
                let (work, value) = self.lane.submit_and_read(label, |_| (), read, || ())?;
                Ok((work, self.lane.ticket(value)))
            })?;
            let bytes = self.collect(work)?;
            let skip = (at - first) as usize;
            piece.copy_from_slice(&bytes[skip..skip + piece.len()]);
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
        // The queue runs submissions in order, which is all that a wait on this lane asks for.
        _waits: &[Ticket],
    ) -> Result<Pending, DeviceError> {
        self.lane.gpu.check()?;
        let native = self.native(recording)?;
        let label = format!("plan {}", recording.plan.label);
        let mut writes = Vec::with_capacity(uploads.len());
        for upload in uploads {
            let n_bytes = upload.bytes.len() as u64;
            let target = self.raw(upload.buffer, upload.offset, n_bytes)?;
            writes.push((target, upload.offset, upload.bytes));
        }
        let read = match readback {
            Some(readback) if readback.n_bytes > 0 => {
                let source = self.raw(&readback.buffer, readback.offset, readback.n_bytes)?;
                Some((source, readback.offset, readback.n_bytes))
            }
            _ => None,
        };
        let (work, value) = self.lane.submit_and_read(
            &label,
            |encoder| {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: Some(&label),
                    timestamp_writes: None,
                });
                for dispatch in &native.dispatches {
                    dispatch.encode(&mut pass, false);
                }
            },
            read,
            || {
                for (target, offset, bytes) in &writes {
                    self.lane.gpu.queue.write_buffer(target, *offset, bytes);
                }
            },
        )?;
        self.count(|traffic| {
            traffic.submits += 1;
            traffic.launches += native.dispatches.len() as u64;
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
            Some(work) => self.collect(*work),
            None => Err(self.lane.gpu.usage("the pending work is of another device")),
        }
    }

    fn copy(&self, transfer: &Transfer<'_>) -> Result<Option<Copied>, DeviceError> {
        let (from, to, n_bytes) = (
            transfer.source_offset,
            transfer.target_offset,
            transfer.n_bytes,
        );
        let target = self.raw(transfer.target, to, n_bytes)?;
        let source = transfer.source.memory::<DeviceMemory>();
        if source.is_none_or(|memory| memory.lane != self.lane.id) {
            // Devices of wgpu share no memory.
            return Ok(None);
        }
        let source = self.raw(transfer.source, from, n_bytes)?;
        let label = transfer.target.label();
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            encoder.copy_buffer_to_buffer(source, from, target, to, n_bytes);
        };
        let (_, value) = self.lane.submit_and_read(label, copy, None, || ())?;
        let ticket = self.lane.ticket(value);
        Ok(Some(Copied {
            read: ticket,
            written: ticket,
        }))
    }

    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        profile::profile(self, recording)
    }
}
