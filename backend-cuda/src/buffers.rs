//! Device memory, and the pinned host memory of uploads and read-backs.

use std::sync::{Arc, Mutex};

use gemel_core::device::{Buffer, Reserved};

use crate::error::{Fault, Gpu, lock};
use crate::launch::{Context, Memory, Pinned};
use gemel_core::error::DeviceError;

/// Memory is handed out in multiples of the widest element that a kernel may load.
pub(crate) const GRANULE: u64 = 16;

/// An allocation and its share of the account. Work in flight keeps a reference.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) memory: Memory,
    /// After the memory, so that the account never counts less than there is.
    pub(crate) _reserved: Reserved,
}

/// What a buffer of the contract holds.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) allocation: Arc<Allocation>,
    /// The lane of the device that it belongs to.
    pub(crate) lane: u64,
}

/// The memory behind a buffer, if it is of this device and the range lies inside.
pub(crate) fn allocation<'a>(
    gpu: &Gpu,
    lane: u64,
    buffer: &'a Buffer,
    offset: u64,
    n_bytes: u64,
) -> Result<&'a Arc<Allocation>, DeviceError> {
    let memory = buffer
        .memory::<DeviceMemory>()
        .filter(|memory| memory.lane == lane)
        .ok_or_else(|| gpu.usage(format!("{buffer:?} belongs to another device")))?;
    let end = offset.checked_add(n_bytes);
    if end.is_none_or(|end| end > buffer.n_bytes()) {
        return Err(gpu.usage(format!("bytes {offset}+{n_bytes} are outside {buffer:?}")));
    }
    Ok(&memory.allocation)
}

/// As [`allocation`], for a range of whole words.
pub(crate) fn words<'a>(
    gpu: &Gpu,
    lane: u64,
    buffer: &'a Buffer,
    offset: u64,
    n_bytes: u64,
) -> Result<&'a Arc<Allocation>, DeviceError> {
    if !offset.is_multiple_of(4) || !n_bytes.is_multiple_of(4) {
        return Err(gpu.usage(format!(
            "bytes {offset}+{n_bytes} of {buffer:?} are not whole words of 4 bytes"
        )));
    }
    allocation(gpu, lane, buffer, offset, n_bytes)
}

/// Pinned memory, used again and again: pinning is slow, and freeing waits for everything on the device.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<Context>,
    free: Mutex<Vec<Pinned>>,
}

impl Staging {
    /// What is free beyond this is given back. Hundreds of steps in flight need less.
    const KEEP_BYTES: usize = 64 << 20;

    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            context,
            free: Mutex::default(),
        })
    }

    /// At least this much memory.
    pub(crate) fn take(self: &Arc<Self>, n_bytes: usize) -> Result<Lease, Fault> {
        let mut free = lock(&self.free);
        let best = free
            .iter()
            .enumerate()
            .filter(|(_, pinned)| pinned.n_bytes() >= n_bytes)
            .min_by_key(|(_, pinned)| pinned.n_bytes())
            .map(|(index, _)| index);
        let pinned = best.map(|index| free.swap_remove(index));
        drop(free);
        let pinned = match pinned {
            Some(pinned) => pinned,
            None => Pinned::new(&self.context, n_bytes.max(4096).next_power_of_two())?,
        };
        Ok(Lease {
            pinned: Some(pinned),
            staging: self.clone(),
        })
    }
}

/// Pinned memory in use, kept for the next when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` only while being dropped.
    pinned: Option<Pinned>,
    staging: Arc<Staging>,
}

impl Lease {
    pub(crate) fn pinned(&self) -> Option<&Pinned> {
        self.pinned.as_ref()
    }

    pub(crate) fn pinned_mut(&mut self) -> Option<&mut Pinned> {
        self.pinned.as_mut()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = lock(&self.staging.free);
        let kept: usize = free.iter().map(Pinned::n_bytes).sum();
        let own = self.pinned.as_ref().map_or(0, Pinned::n_bytes);
        if kept + own <= Staging::KEEP_BYTES {
            free.extend(self.pinned.take());
        }
    }
}
