//! The lane of a device: its queue, what was submitted to it, and how others wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak, mpsc};

use gemel_core::device::lane::{self, Registered};
use gemel_core::device::{Ticket, next_id};
use gemel_core::error::DeviceError;

use crate::buffers::Staging;
use crate::error::{Gpu, lock};

/// Bytes that are staged before they are submitted: wgpu keeps all of it in host memory until then.
pub(crate) const PIECE: u64 = 8 << 20;

/// Submissions that are remembered one by one. Who waits for an older one waits for the oldest of these.
const REMEMBERED: usize = 64;

/// The queue of a device.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) gpu: Gpu,
    staging: Staging,
    /// Makes uploads and the submission that needs them one unit.
    queue: Mutex<Queue>,
    /// `None` once it is known that the work will not end.
    registered: Option<Registered>,
}

/// What was submitted, and the writes that wait for the next submission.
#[derive(Debug, Default)]
struct Queue {
    submitted: u64,
    recent: VecDeque<Submission>,
    staged_bytes: u64,
    /// The last submission that was made for writes alone.
    flushed: Option<wgpu::SubmissionIndex>,
}

#[derive(Debug)]
struct Submission {
    value: u64,
    index: wgpu::SubmissionIndex,
    label: String,
}

impl Queue {
    /// Notes a submission, which took the staged writes along.
    fn push(&mut self, index: wgpu::SubmissionIndex, label: &str) -> u64 {
        self.submitted += 1;
        self.staged_bytes = 0;
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Submission {
            value: self.submitted,
            index,
            label: label.to_owned(),
        });
        self.submitted
    }
}

/// Submitted work and its read-back.
pub(crate) struct InFlight {
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

impl Drop for Lane {
    /// Waits for the work in flight, so that its tickets stay true. wgpu keeps what the work needs.
    fn drop(&mut self) {
        let last = lock(&self.queue).recent.pop_back();
        if let Some(last) = last
            && let Err(DeviceError::Timeout { .. }) = self.gpu.wait(&last.index, &last.label)
        {
            std::mem::forget(self.registered.take());
        }
    }
}

impl lane::Lane for Lane {
    fn wait(&self, value: u64, why: &str) -> Result<(), DeviceError> {
        let mut queue = lock(&self.queue);
        if queue.submitted < value {
            // Writes that nobody has submitted yet.
            let index = self
                .gpu
                .checked("submitting writes", || self.gpu.queue.submit([]))?;
            queue.push(index, "writes");
        }
        let found = queue.recent.iter().find(|sent| sent.value >= value);
        let found = found.map(|sent| (sent.index.clone(), sent.label.clone()));
        drop(queue);
        match found {
            Some((index, label)) => self
                .gpu
                .wait(&index, &format!("{label}, which {why} needs")),
            None => self.gpu.check(),
        }
    }
}

impl Lane {
    /// An empty lane.
    pub(crate) fn open(gpu: Gpu) -> Arc<Self> {
        let id = next_id();
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            id,
            gpu,
            staging: Staging::default(),
            queue: Mutex::default(),
            registered: Some(lane::register(id, weak.clone())),
        })
    }

    /// A ticket of this lane.
    pub(crate) fn ticket(&self, value: u64) -> Ticket {
        Ticket {
            lane: self.id,
            value,
        }
    }

    /// Writes whole words, and submits when enough has been staged. Returns the submission that carries them.
    pub(crate) fn write(
        &self,
        target: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, DeviceError> {
        let mut queue = lock(&self.queue);
        let flushed = self.gpu.checked("writing", || {
            self.gpu.queue.write_buffer(target, offset, bytes);
            queue.staged_bytes += bytes.len() as u64;
            (queue.staged_bytes >= PIECE).then(|| self.gpu.queue.submit([]))
        })?;
        // Two pieces may be in flight: the one that is copied while the next is staged.
        let (value, before) = match flushed {
            Some(index) => {
                let value = queue.push(index.clone(), "writes");
                (value, queue.flushed.replace(index))
            }
            None => (queue.submitted + 1, None),
        };
        drop(queue);
        if let Some(index) = before {
            self.gpu.wait(&index, "an upload")?;
        }
        Ok(value)
    }

    /// Submits an encoder, with a copy of a range to the host at its end. What `before` writes goes with it.
    pub(crate) fn submit_and_read(
        &self,
        label: &str,
        encode: impl FnOnce(&mut wgpu::CommandEncoder),
        read: Option<(&wgpu::Buffer, u64, u64)>,
        before: impl FnOnce(),
    ) -> Result<(InFlight, u64), DeviceError> {
        let gpu = &self.gpu;
        let staging = match read {
            Some((_, _, n_bytes)) => Some(self.staging.take(gpu, n_bytes)?),
            None => None,
        };
        let mut queue = lock(&self.queue);
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
        let value = queue.push(work.index.clone(), label);
        Ok((work, value))
    }

    /// Waits for work and takes its read-back.
    pub(crate) fn collect(&self, work: InFlight) -> Result<Vec<u8>, DeviceError> {
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
        Ok(bytes)
    }
}
