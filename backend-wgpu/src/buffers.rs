//! Device memory and its account, and the staging buffers of read-backs.

use std::sync::{Arc, Mutex};

use gemel_core::device::{Buffer, Memory};
use gemel_core::error::DeviceError;

use crate::error::{Fault, Gpu, lock};

/// Memory is handed out in multiples of the widest element that a kernel may load.
const GRANULE: u64 = 16;

/// The engine's own account: drivers over-commit, so asking them tells nothing.
#[derive(Clone, Debug)]
pub(crate) struct Account(Arc<Mutex<Memory>>);

impl Account {
    pub(crate) fn new(total: u64) -> Self {
        Self(Arc::new(Mutex::new(Memory {
            used: 0,
            peak: 0,
            total,
        })))
    }

    pub(crate) fn read(&self) -> Memory {
        *lock(&self.0)
    }

    /// Reserves memory, or tells how much is left.
    fn take(&self, n_bytes: u64) -> Result<Reserved, Memory> {
        let mut memory = lock(&self.0);
        match memory.used.checked_add(n_bytes) {
            Some(used) if used <= memory.total => {
                memory.used = used;
                memory.peak = memory.peak.max(used);
                Ok(Reserved {
                    account: self.clone(),
                    n_bytes,
                })
            }
            _ => Err(*memory),
        }
    }
}

/// A share of the account, given back when dropped.
#[derive(Debug)]
struct Reserved {
    account: Account,
    n_bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&self.account.0).used -= self.n_bytes;
    }
}

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) raw: wgpu::Buffer,
    /// The lane of the device that it belongs to.
    lane: u64,
    _reserved: Reserved,
}

/// Allocates memory on the account; its contents are zero.
pub(crate) fn alloc(
    gpu: &Gpu,
    account: &Account,
    lane: u64,
    n_bytes: u64,
    label: &str,
    usage: wgpu::BufferUsages,
) -> Result<DeviceMemory, DeviceError> {
    gpu.check()?;
    let out_of_memory = |memory: Memory| DeviceError::OutOfMemory {
        device: gpu.name.clone(),
        what: label.to_owned(),
        needed: n_bytes,
        free: memory.total - memory.used,
        total: memory.total,
    };
    let limit = gpu.device.limits().max_buffer_size;
    let size = n_bytes.max(4).next_multiple_of(GRANULE);
    if size > limit {
        return Err(gpu.usage(format!(
            "{n_bytes} bytes for {label} exceed the device's largest buffer of {limit} bytes; use several"
        )));
    }
    let reserved = account.take(size).map_err(out_of_memory)?;
    let raw = gpu.scoped(|| {
        gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        })
    });
    gpu.check()?;
    match raw {
        Ok(raw) => Ok(DeviceMemory {
            raw,
            lane,
            _reserved: reserved,
        }),
        Err(Fault::OutOfMemory) => {
            drop(reserved);
            Err(out_of_memory(account.read()))
        }
        Err(Fault::Other(message)) => {
            Err(gpu.driver(format!("allocating {n_bytes} bytes for {label}: {message}")))
        }
    }
}

/// The memory behind a buffer, if it is of this device and the range lies inside.
pub(crate) fn raw<'a>(
    gpu: &Gpu,
    lane: u64,
    buffer: &'a Buffer,
    offset: u64,
    n_bytes: u64,
) -> Result<&'a wgpu::Buffer, DeviceError> {
    let memory = buffer
        .memory::<DeviceMemory>()
        .filter(|memory| memory.lane == lane)
        .ok_or_else(|| gpu.usage(format!("{buffer:?} belongs to another device")))?;
    let end = offset.checked_add(n_bytes);
    if end.is_none_or(|end| end > buffer.n_bytes()) {
        return Err(gpu.usage(format!("bytes {offset}+{n_bytes} are outside {buffer:?}")));
    }
    Ok(&memory.raw)
}

/// Mappable buffers for read-backs, used again and again: the first mapping of fresh memory is slow.
#[derive(Debug, Default)]
pub(crate) struct Staging(Mutex<Vec<wgpu::Buffer>>);

impl Staging {
    /// More free buffers than this are not kept.
    const KEEP: usize = 8;

    /// A buffer of at least this size.
    pub(crate) fn take(&self, gpu: &Gpu, n_bytes: u64) -> Result<wgpu::Buffer, DeviceError> {
        let mut free = lock(&self.0);
        let best = free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.size() >= n_bytes)
            .min_by_key(|(_, buffer)| buffer.size())
            .map(|(index, _)| index);
        if let Some(index) = best {
            return Ok(free.swap_remove(index));
        }
        drop(free);
        let limit = gpu.device.limits().max_buffer_size & !3;
        if n_bytes > limit {
            return Err(gpu.usage(format!(
                "a read-back of {n_bytes} bytes exceeds the device's largest buffer of {limit} bytes"
            )));
        }
        let size = n_bytes.max(4096).next_power_of_two().min(limit);
        gpu.checked("allocating a read-back buffer", || {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read-back"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    }

    /// Keeps an unmapped buffer for the next read-back.
    pub(crate) fn give(&self, buffer: wgpu::Buffer) {
        let mut free = lock(&self.0);
        if free.len() < Self::KEEP {
            free.push(buffer);
        }
    }
}
