//! Device memory, and the staging buffers of read-backs.

use std::sync::Mutex;

use gemel_core::device::{Account, Buffer, Reserved};
use gemel_core::error::DeviceError;

use crate::error::{Fault, Gpu, lock};

/// Memory is handed out in multiples of the widest element that a kernel may load.
const GRANULE: u64 = 16;

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) raw: wgpu::Buffer,
    /// The lane of the device that it belongs to.
    pub(crate) lane: u64,
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
    let exhausted = || account.exhausted(&gpu.name, label, n_bytes);
    let limit = gpu.device.limits().max_buffer_size;
    let size = n_bytes.max(4).checked_next_multiple_of(GRANULE);
    let Some(size) = size.filter(|&size| size <= limit) else {
        return Err(gpu.usage(format!(
            "{n_bytes} bytes for {label} exceed the device's largest buffer of {limit} bytes; use several"
        )));
    };
    let reserved = account.take(size).ok_or_else(exhausted)?;
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
            Err(exhausted())
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
