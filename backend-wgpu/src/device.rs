//! A wgpu device as the device of the contract: one queue, one lane.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use gemel_core::device::{
    Buffer, Device, Memory, Pending, Readback, Recording, Ticket, Traffic, Upload, next_id,
};
use gemel_core::error::DeviceError;
use gemel_core::op::Caps;
use gemel_core::plan::Plan;

use crate::buffers::{self, Account, Staging};
use crate::caps::{self, AdapterInfo, WgpuOptions};
use crate::error::{Gpu, lock};
use crate::pipelines::Pipelines;
use crate::profile;
use crate::record::{self, Native, Tables};
use crate::source::Library;

/// Bytes that are staged before they are submitted: wgpu keeps all of it in host memory until then.
const PIECE: u64 = 8 << 20;

/// A device of wgpu.
#[derive(Debug)]
pub struct WgpuDevice {
    pub(crate) gpu: Gpu,
    pub(crate) lane: u64,
    pub(crate) caps: Caps,
    pub(crate) account: Account,
    pub(crate) pipelines: Pipelines,
    pub(crate) tables: Tables,
    info: AdapterInfo,
    staging: Staging,
    submitted: AtomicU64,
    traffic: Mutex<Traffic>,
    /// Makes uploads and the submission that needs them one unit.
    order: Mutex<Staged>,
}

/// Writes that wait for the next submission.
#[derive(Debug, Default)]
struct Staged {
    n_bytes: u64,
    /// The last submission that was made for writes alone.
    flushed: Option<wgpu::SubmissionIndex>,
}

/// What `finish` needs.
struct InFlight {
    index: wgpu::SubmissionIndex,
    label: String,
    read: Option<Mapping>,
}

/// A read-back under way.
struct Mapping {
    buffer: wgpu::Buffer,
    n_bytes: u64,
    mapped: mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>,
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
            .fold(Library::embedded(), |library, (name, text)| {
                library.with(name, text)
            });
        Ok(Self {
            gpu: Gpu::new(chosen.info.name.clone(), device, queue, options.deadline),
            lane: next_id(),
            caps: chosen.info.caps.clone(),
            account: Account::new(chosen.info.caps.memory_bytes),
            pipelines: Pipelines::new(library, options.checked, options.progress.clone()),
            tables: Tables::default(),
            info: chosen.info,
            staging: Staging::default(),
            submitted: AtomicU64::new(0),
            traffic: Mutex::default(),
            order: Mutex::default(),
        })
    }

    /// The adapter that the device runs on.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.info
    }

    /// Gives the device up: from now on everything fails with [`DeviceError::Lost`], as if it had been unplugged.
    pub fn destroy(&self) {
        self.gpu.device.destroy();
        // The callback that reports the loss runs inside a poll; an error of the poll says the same.
        let _ = self.gpu.device.poll(wgpu::PollType::Poll);
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

    fn raw<'a>(
        &self,
        buffer: &'a Buffer,
        offset: u64,
        n_bytes: u64,
    ) -> Result<&'a wgpu::Buffer, DeviceError> {
        if !offset.is_multiple_of(4) || !n_bytes.is_multiple_of(4) {
            return Err(self.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} are not whole words of 4 bytes"
            )));
        }
        buffers::raw(&self.gpu, self.lane, buffer, offset, n_bytes)
    }

    /// Writes whole words, and submits when enough has been staged.
    fn write_words(
        &self,
        target: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let mut order = lock(&self.order);
        let flushed = self.gpu.checked("writing", || {
            self.gpu.queue.write_buffer(target, offset, bytes);
            order.n_bytes += bytes.len() as u64;
            (order.n_bytes >= PIECE).then(|| self.gpu.queue.submit([]))
        })?;
        // Two pieces may be in flight: the one that is copied while the next is staged.
        let before = match flushed {
            Some(index) => {
                order.n_bytes = 0;
                order.flushed.replace(index)
            }
            None => None,
        };
        drop(order);
        match before {
            Some(index) => self.gpu.wait(&index, "an upload"),
            None => Ok(()),
        }
    }

    /// Waits for work and takes its read-back.
    fn collect(&self, work: InFlight) -> Result<Vec<u8>, DeviceError> {
        self.gpu.wait(&work.index, &work.label)?;
        let Some(Mapping {
            buffer,
            n_bytes,
            mapped,
        }) = work.read
        else {
            return Ok(Vec::new());
        };
        let failed = |why: String| {
            self.gpu
                .driver(format!("reading back {}: {why}", work.label))
        };
        // Another thread's poll may still be about to run the callback.
        match mapped.recv_timeout(self.gpu.deadline) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.gpu.check()?;
                return Err(failed(error.to_string()));
            }
            Err(error) => {
                self.gpu.check()?;
                return Err(failed(error.to_string()));
            }
        }
        let bytes = buffer
            .slice(..n_bytes)
            .get_mapped_range()
            .map_err(|error| failed(error.to_string()))?
            .to_vec();
        buffer.unmap();
        self.staging.give(buffer);
        self.count(|traffic| traffic.downloaded += n_bytes);
        Ok(bytes)
    }

    /// Submits an encoder, with a copy of a range to the host at its end.
    pub(crate) fn submit_and_read(
        &self,
        label: &str,
        encode: impl FnOnce(&mut wgpu::CommandEncoder),
        read: Option<(&wgpu::Buffer, u64, u64)>,
        before: impl FnOnce(),
    ) -> Result<Box<dyn Any + Send>, DeviceError> {
        let gpu = &self.gpu;
        let staging = match read {
            Some((_, _, n_bytes)) => Some(self.staging.take(gpu, n_bytes)?),
            None => None,
        };
        let mut order = lock(&self.order);
        let work = gpu.checked(label, || {
            before();
            let mut encoder = gpu
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) });
            encode(&mut encoder);
            if let (Some((source, offset, n_bytes)), Some(staging)) = (read, &staging) {
                encoder.copy_buffer_to_buffer(source, offset, staging, 0, n_bytes);
            }
            let index = gpu.queue.submit([encoder.finish()]);
            let read = staging.zip(read).map(|(buffer, (_, _, n_bytes))| {
                let (send, mapped) = mpsc::channel();
                buffer
                    .slice(..n_bytes)
                    .map_async(wgpu::MapMode::Read, move |result| {
                        // Nobody listens if the read-back was given up.
                        let _ = send.send(result);
                    });
                Mapping {
                    buffer,
                    n_bytes,
                    mapped,
                }
            });
            InFlight {
                index,
                label: label.to_owned(),
                read,
            }
        })?;
        order.n_bytes = 0;
        Ok(Box::new(work))
    }

    pub(crate) fn finish_work(&self, native: Box<dyn Any + Send>) -> Result<Vec<u8>, DeviceError> {
        match native.downcast::<InFlight>() {
            Ok(work) => self.collect(*work),
            Err(_) => Err(self.gpu.usage("the pending work is of another device")),
        }
    }
}

impl Device for WgpuDevice {
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
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC;
        let memory = buffers::alloc(&self.gpu, &self.account, self.lane, n_bytes, label, usage)?;
        let n_bytes = n_bytes.max(4).next_multiple_of(4);
        Ok(Buffer::new(n_bytes, label, Box::new(memory)))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.gpu.check()?;
        let n_bytes = bytes.len() as u64;
        buffers::raw(&self.gpu, self.lane, buffer, offset, n_bytes)?;
        // A length that is not whole words can only end where the buffer ends: the rest is padding.
        let padded = n_bytes.next_multiple_of(4);
        if padded != n_bytes && offset + padded != buffer.n_bytes() {
            return Err(self.gpu.usage(format!(
                "bytes {offset}+{n_bytes} of {buffer:?} end inside a word of 4 bytes"
            )));
        }
        let target = self.raw(buffer, offset, padded)?;
        let whole = bytes.len() & !3;
        let mut at = offset;
        for piece in bytes[..whole].chunks(PIECE as usize) {
            self.write_words(target, at, piece)?;
            at += piece.len() as u64;
        }
        if whole < bytes.len() {
            let mut word = [0; 4];
            word[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.write_words(target, at, &word)?;
        }
        self.count(|traffic| traffic.uploaded += n_bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.gpu.check()?;
        buffers::raw(&self.gpu, self.lane, buffer, offset, out.len() as u64)?;
        let mut at = offset;
        for piece in out.chunks_mut(PIECE as usize) {
            let first = at & !3;
            let end = (at + piece.len() as u64).next_multiple_of(4);
            let source = self.raw(buffer, first, end - first)?;
            let work = self.submit_and_read(
                buffer.label(),
                |_| (),
                Some((source, first, end - first)),
                || (),
            )?;
            let bytes = self.finish_work(work)?;
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
        waits: &[Ticket],
    ) -> Result<Pending, DeviceError> {
        self.gpu.check()?;
        let native = self.native(recording)?;
        let label = format!("plan {}", recording.plan.label);
        // The queue runs submissions in order, which is all that a wait on this lane asks for.
        if let Some(wait) = waits.iter().find(|wait| wait.lane != self.lane) {
            return Err(self.gpu.usage(format!(
                "{label} cannot wait for lane {} of another device",
                wait.lane
            )));
        }
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
        let work = self.submit_and_read(
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
                    self.gpu.queue.write_buffer(target, *offset, bytes);
                }
            },
        )?;
        self.count(|traffic| {
            traffic.submits += 1;
            traffic.launches += native.dispatches.len() as u64;
            traffic.uploaded += uploads.iter().map(|u| u.bytes.len() as u64).sum::<u64>();
        });
        Ok(Pending {
            ticket: Ticket {
                lane: self.lane,
                value: self.submitted.fetch_add(1, Ordering::Relaxed) + 1,
            },
            native: Some(work),
        })
    }

    fn finish(&self, pending: Pending) -> Result<Vec<u8>, DeviceError> {
        match pending.native {
            Some(native) => self.finish_work(native),
            None => Err(self.gpu.usage("the pending work is of another device")),
        }
    }

    fn profile(&self, recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        profile::profile(self, recording)
    }
}
