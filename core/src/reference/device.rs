//! The reference as a device: whole models run on it, slowly and exactly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{RefArgs, RefOutput, RefTensor, RefTensorMut};
use crate::device::{
    Access, Buffer, Copied, Device, Memory, Pending, Readback, Recording, Ticket, Traffic,
    Transfer, Upload, next_id, ordered, reference_caps,
};
use crate::error::DeviceError;
use crate::op::Caps;
use crate::plan::{Placed, Plan, Step};

type Bytes = RwLock<Vec<u8>>;

/// Executes the definitions of ops on the host, step by step, before `execute` returns. Its tickets have therefore
/// signalled when anyone sees them, and its lane needs no owner.
#[derive(Debug)]
pub struct ReferenceDevice {
    caps: Caps,
    lane: u64,
    submitted: AtomicU64,
    memory: Arc<Mutex<Memory>>,
    traffic: Mutex<Traffic>,
}

/// Memory that is given back to the account when dropped.
struct HostMemory {
    bytes: Bytes,
    account: Arc<Mutex<Memory>>,
    n_bytes: u64,
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let mut memory = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        memory.used -= self.n_bytes;
    }
}

impl Default for ReferenceDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceDevice {
    /// A reference device without a memory limit.
    pub fn new() -> Self {
        Self {
            caps: reference_caps(),
            lane: next_id(),
            submitted: AtomicU64::new(0),
            memory: Arc::new(Mutex::new(Memory {
                used: 0,
                peak: 0,
                total: u64::MAX,
            })),
            traffic: Mutex::default(),
        }
    }

    fn bytes<'a>(
        &self,
        buffer: &'a Buffer,
        offset: u64,
        n_bytes: u64,
    ) -> Result<&'a Bytes, DeviceError> {
        let usage = |what: String| DeviceError::Usage {
            device: self.name().to_owned(),
            what,
        };
        let memory = buffer
            .memory::<HostMemory>()
            .ok_or_else(|| usage(format!("{buffer:?} belongs to another device")))?;
        if offset
            .checked_add(n_bytes)
            .is_none_or(|end| end > buffer.n_bytes())
        {
            return Err(usage(format!(
                "bytes {offset}+{n_bytes} are outside {buffer:?}"
            )));
        }
        Ok(&memory.bytes)
    }

    /// The next ticket of the lane.
    fn ticket(&self) -> Ticket {
        Ticket {
            lane: self.lane,
            value: self.submitted.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    fn put(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let target = self.bytes(buffer, offset, bytes.len() as u64)?;
        write_lock(target)[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        self.count(|traffic| traffic.uploaded += bytes.len() as u64);
        Ok(())
    }

    fn get(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let source = self.bytes(buffer, offset, out.len() as u64)?;
        out.copy_from_slice(&read_lock(source)[offset as usize..offset as usize + out.len()]);
        self.count(|traffic| traffic.downloaded += out.len() as u64);
        Ok(())
    }

    fn count(&self, add: impl FnOnce(&mut Traffic)) {
        add(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn step(&self, plan: &Plan, step: &Step) -> Result<(), DeviceError> {
        let read = |placed: &Placed| -> Result<Vec<u8>, DeviceError> {
            // Activations are copied out, so that inputs and outputs may share a buffer.
            let span = placed.spans[0];
            let bytes = self.bytes(&plan.buffers[span.buffer], span.offset, span.n_bytes)?;
            let bytes = read_lock(bytes);
            Ok(bytes[span.offset as usize..(span.offset + span.n_bytes) as usize].to_vec())
        };
        // Weights and caches are large: inputs in buffers that the step does not write are only locked.
        let written: Vec<usize> = step
            .inouts
            .iter()
            .chain(&step.outputs)
            .map(|placed| placed.spans[0].buffer)
            .collect();
        let mut copies = Vec::new();
        let mut guards = Vec::new();
        for placed in &step.inputs {
            let span = placed.spans[0];
            if written.contains(&span.buffer) {
                copies.push(Some(read(placed)?));
                guards.push(None);
            } else {
                let bytes = self.bytes(&plan.buffers[span.buffer], span.offset, span.n_bytes)?;
                copies.push(None);
                guards.push(Some(read_lock(bytes)));
            }
        }
        let inputs: Vec<RefTensor<'_>> = step
            .inputs
            .iter()
            .zip(copies.iter().zip(&guards))
            .map(|(placed, (copy, guard))| {
                let span = placed.spans[0];
                let bytes = match (copy, guard) {
                    (Some(copy), _) => copy.as_slice(),
                    (None, Some(guard)) => {
                        &guard[span.offset as usize..(span.offset + span.n_bytes) as usize]
                    }
                    (None, None) => unreachable!("an input is copied or locked"),
                };
                RefTensor {
                    desc: &placed.desc,
                    bytes,
                }
            })
            .collect();

        let mut inout_guards = Vec::new();
        for placed in &step.inouts {
            let span = placed.spans[0];
            let bytes = self.bytes(&plan.buffers[span.buffer], span.offset, span.n_bytes)?;
            inout_guards.push((write_lock(bytes), span));
        }
        let inouts = step
            .inouts
            .iter()
            .zip(&mut inout_guards)
            .map(|(placed, (guard, span))| {
                RefTensorMut::new(
                    &placed.desc,
                    &mut guard[span.offset as usize..(span.offset + span.n_bytes) as usize],
                )
            })
            .collect();
        let outputs = step
            .outputs
            .iter()
            .map(|placed| RefOutput::values_only(&placed.desc))
            .collect();
        let mut args = RefArgs {
            inputs,
            inouts,
            outputs,
        };
        step.op.reference(&mut args);
        let RefArgs { outputs, .. } = args;
        for (placed, output) in step.outputs.iter().zip(&outputs) {
            let span = placed.spans[0];
            let bytes = self.bytes(&plan.buffers[span.buffer], span.offset, span.n_bytes)?;
            let mut bytes = write_lock(bytes);
            output.store(&mut bytes[span.offset as usize..(span.offset + span.n_bytes) as usize]);
        }
        Ok(())
    }
}

fn read_lock(bytes: &Bytes) -> RwLockReadGuard<'_, Vec<u8>> {
    bytes.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock(bytes: &Bytes) -> RwLockWriteGuard<'_, Vec<u8>> {
    bytes.write().unwrap_or_else(PoisonError::into_inner)
}

impl Device for ReferenceDevice {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn description(&self) -> String {
        "definitions of the ops in f64 on the host".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn memory(&self) -> Memory {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traffic(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self) -> u64 {
        self.lane
    }

    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let exhausted = || DeviceError::OutOfMemory {
            device: self.name().to_owned(),
            what: label.to_owned(),
            needed: n_bytes,
            free: 0,
            total: self.memory().used,
        };
        let n_bytes = n_bytes.checked_next_multiple_of(4).ok_or_else(exhausted)?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(n_bytes as usize)
            .map_err(|_| exhausted())?;
        bytes.resize(n_bytes as usize, 0);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.used += n_bytes;
        memory.peak = memory.peak.max(memory.used);
        drop(memory);
        let host = HostMemory {
            bytes: RwLock::new(bytes),
            account: self.memory.clone(),
            n_bytes,
        };
        Ok(Buffer::new(n_bytes, label, Box::new(host)))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        ordered(self, "a write", [(buffer, Access::Write)], |_| {
            self.put(buffer, offset, bytes)?;
            Ok(((), self.ticket()))
        })
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        ordered(self, "a read", [(buffer, Access::Read)], |_| {
            self.get(buffer, offset, out)?;
            Ok(((), self.ticket()))
        })
    }

    fn record(&self, plan: &Arc<Plan>) -> Result<Recording, DeviceError> {
        Ok(Recording {
            plan: plan.clone(),
            native: Arc::new(()),
        })
    }

    fn execute(
        &self,
        recording: &Recording,
        uploads: &[Upload<'_>],
        readback: Option<&Readback>,
        _waits: &[Ticket],
    ) -> Result<Pending, DeviceError> {
        for upload in uploads {
            self.put(upload.buffer, upload.offset, upload.bytes)?;
        }
        for step in &recording.plan.steps {
            self.step(&recording.plan, step)?;
        }
        let bytes = match readback {
            Some(readback) => {
                let mut out = vec![0; readback.n_bytes as usize];
                self.get(&readback.buffer, readback.offset, &mut out)?;
                out
            }
            None => Vec::new(),
        };
        self.count(|traffic| traffic.submits += 1);
        Ok(Pending {
            ticket: self.ticket(),
            native: Some(Box::new(bytes)),
        })
    }

    fn finish(&self, pending: Pending) -> Result<Vec<u8>, DeviceError> {
        Ok(pending
            .native
            .and_then(|native| native.downcast().ok())
            .map(|bytes: Box<Vec<u8>>| *bytes)
            .unwrap_or_default())
    }

    fn copy(&self, transfer: &Transfer<'_>) -> Result<Option<Copied>, DeviceError> {
        if transfer.source.memory::<HostMemory>().is_none() {
            return Ok(None);
        }
        let source = self.bytes(transfer.source, transfer.source_offset, transfer.n_bytes)?;
        let target = self.bytes(transfer.target, transfer.target_offset, transfer.n_bytes)?;
        let (from, to) = (transfer.source_offset, transfer.target_offset);
        let n_bytes = transfer.n_bytes as usize;
        write_lock(target)[to as usize..to as usize + n_bytes]
            .copy_from_slice(&read_lock(source)[from as usize..from as usize + n_bytes]);
        let ticket = self.ticket();
        Ok(Some(Copied {
            read: ticket,
            written: ticket,
        }))
    }

    fn profile(&self, _recording: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        Ok(None)
    }
}
