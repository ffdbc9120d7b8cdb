//! The order of everything that touches a buffer, on whatever device: the one place that looks at hazards and notes
//! tickets.
//!
//! A submission enters its buffers (readers together, a writer alone), collects the tickets that it has to come
//! after, is made, and leaves its own ticket behind. What its device can order itself, the device is told; for the
//! rest the host waits here, with the deadline of the lane that it waits for.

use super::buffer::{Access, Buffer, Entered};
use super::lane::{self, Ticket};
use super::{Device, Pending, Readback, Recording, Transfer, Upload};
use crate::error::DeviceError;

/// Bytes that go through the host at once where two devices have no other way.
const PIECE: u64 = 8 << 20;

/// Buffers entered in the order of their numbers, so that no two submissions wait for each other.
struct Entry<'a> {
    accesses: Vec<(&'a Buffer, Access)>,
    _entered: Vec<Entered<'a>>,
}

impl<'a> Entry<'a> {
    fn new(accesses: impl IntoIterator<Item = (&'a Buffer, Access)>) -> Self {
        let mut accesses: Vec<(&Buffer, Access)> = accesses.into_iter().collect();
        // A buffer that is both read and written is written.
        accesses.sort_by_key(|(buffer, access)| (buffer.id(), *access == Access::Read));
        accesses.dedup_by_key(|(buffer, _)| buffer.id());
        let entered = accesses
            .iter()
            .map(|(buffer, access)| buffer.enter(*access))
            .collect();
        Self {
            accesses,
            _entered: entered,
        }
    }

    fn hazards(&self) -> Vec<Ticket> {
        let hazards = self
            .accesses
            .iter()
            .flat_map(|(buffer, access)| buffer.hazards(*access));
        latest(hazards.collect())
    }

    fn note(&self, ticket: Ticket) {
        for (buffer, access) in &self.accesses {
            buffer.note(*access, ticket);
        }
    }
}

/// The last ticket of each lane.
fn latest(mut tickets: Vec<Ticket>) -> Vec<Ticket> {
    tickets.sort_unstable();
    tickets.dedup_by(|later, earlier| {
        let same = later.lane == earlier.lane;
        if same {
            earlier.value = earlier.value.max(later.value);
        }
        same
    });
    tickets
}

/// The waits that the device takes care of. The host has waited for the others.
fn left_to(
    device: &dyn Device,
    mut waits: Vec<Ticket>,
    what: &str,
) -> Result<Vec<Ticket>, DeviceError> {
    for wait in waits.extract_if(.., |wait| !device.orders(wait.lane)) {
        lane::wait(wait, what)?;
    }
    Ok(waits)
}

/// Runs work that accesses buffers, ordered after everything that touched them. `work` is given the tickets to come
/// after, and returns its own. For backends; callers of devices have [`submit`] and [`copy_across`].
///
/// # Errors
/// Those of the work; a wait for another device past its deadline.
pub fn ordered<'a, T>(
    device: &dyn Device,
    what: &str,
    accesses: impl IntoIterator<Item = (&'a Buffer, Access)>,
    work: impl FnOnce(&[Ticket]) -> Result<(T, Ticket), DeviceError>,
) -> Result<T, DeviceError> {
    let entry = Entry::new(accesses);
    let waits = left_to(device, entry.hazards(), what)?;
    let (value, ticket) = work(&waits)?;
    entry.note(ticket);
    Ok(value)
}

/// Replays a recording, ordered after everything that touched its buffers.
///
/// # Errors
/// As [`Device::execute`]; a wait for another device past its deadline.
pub fn submit(
    device: &dyn Device,
    recording: &Recording,
    uploads: &[Upload<'_>],
    readback: Option<&Readback>,
) -> Result<Pending, DeviceError> {
    let touches = recording.plan.touches();
    let uploaded = uploads.iter().map(|upload| (upload.buffer, Access::Write));
    let read_back = readback
        .iter()
        .map(|readback| (&readback.buffer, Access::Read));
    let accesses = touches
        .iter()
        .map(|(buffer, access)| (buffer, *access))
        .chain(uploaded)
        .chain(read_back);
    let what = format!("plan {} on {}", recording.plan.label, device.name());
    ordered(device, &what, accesses, |waits| {
        let pending = device.execute(recording, uploads, readback, waits)?;
        let ticket = pending.ticket;
        Ok((pending, ticket))
    })
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The device that the buffer belongs to.
    pub device: &'a dyn Device,
    /// The memory.
    pub buffer: &'a Buffer,
    /// Offset in bytes, a multiple of 4.
    pub offset: u64,
}

/// Copies a range to another buffer, of the same or of another device, ordered like a submission: after everything
/// that touched either end, before whatever touches it later. `n_bytes` is a multiple of 4.
///
/// Where the target's device has a way of its own the call returns with the copy under way; otherwise the bytes have
/// gone through the host when it returns.
///
/// # Errors
/// A range outside its buffer, or both ends in one buffer; devices lost; a wait past its deadline.
pub fn copy_across(source: Place<'_>, target: Place<'_>, n_bytes: u64) -> Result<(), DeviceError> {
    let (from, to) = (source.buffer, target.buffer);
    if from.id() == to.id() {
        return Err(DeviceError::Usage {
            device: target.device.name().to_owned(),
            what: format!("a copy inside {to:?} is an op, not a copy between buffers"),
        });
    }
    if n_bytes == 0 {
        return Ok(());
    }
    let what = format!("a copy of {} to {}", from.label(), target.device.name());
    let copied = {
        let entry = Entry::new([(from, Access::Read), (to, Access::Write)]);
        // Each end waits for its own: where there are two hops, the first need not wait for the target.
        let after =
            |buffer: &Buffer, access| left_to(target.device, latest(buffer.hazards(access)), &what);
        let transfer = Transfer {
            source: from,
            source_offset: source.offset,
            source_waits: &after(from, Access::Read)?,
            target: to,
            target_offset: target.offset,
            target_waits: &after(to, Access::Write)?,
            n_bytes,
        };
        let copied = target.device.copy(&transfer)?;
        if let Some(copied) = copied {
            from.note(Access::Read, copied.read);
            to.note(Access::Write, copied.written);
        }
        drop(entry);
        copied
    };
    if copied.is_none() {
        let mut piece = vec![0; n_bytes.min(PIECE) as usize];
        for at in (0..n_bytes).step_by(PIECE as usize) {
            let piece = &mut piece[..(n_bytes - at).min(PIECE) as usize];
            source.device.read(from, source.offset + at, piece)?;
            target.device.write(to, target.offset + at, piece)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::reference::ReferenceDevice;

    fn ticket(lane: u64, value: u64) -> Ticket {
        Ticket { lane, value }
    }

    #[test]
    fn waits_are_the_latest_of_each_lane() {
        let tickets = vec![ticket(2, 1), ticket(1, 7), ticket(2, 5), ticket(1, 3)];
        assert_eq!(latest(tickets), [ticket(1, 7), ticket(2, 5)], "merged");
    }

    #[test]
    fn work_comes_after_what_touched_its_buffers_and_leaves_its_ticket() {
        let device = ReferenceDevice::new();
        let (own, foreign) = (device.lane(), crate::device::next_id());
        let (x, y) = (
            Buffer::new(4, "x", Box::new(())),
            Buffer::new(4, "y", Box::new(())),
        );
        x.note(Access::Write, ticket(own, 1));
        y.note(Access::Write, ticket(own, 2));
        y.note(Access::Read, ticket(foreign, 9));
        // `y` twice: it is written.
        let accesses = [(&y, Access::Read), (&x, Access::Read), (&y, Access::Write)];
        ordered(&device, "a test", accesses, |waits| {
            assert_eq!(waits, [ticket(own, 2)], "the foreign lane has ended");
            Ok(((), ticket(own, 3)))
        })
        .expect("ordered");
        assert_eq!(
            x.hazards(Access::Write),
            [ticket(own, 1), ticket(own, 3)],
            "read"
        );
        assert_eq!(y.hazards(Access::Write), [ticket(own, 3)], "written");
    }

    #[test]
    fn a_ticket_is_left_only_by_work_that_was_made() {
        let device = ReferenceDevice::new();
        let x = Buffer::new(4, "x", Box::new(()));
        let failed: Result<(), _> = ordered(&device, "a test", [(&x, Access::Write)], |_| {
            Err(DeviceError::Lost {
                device: "none".to_owned(),
                reason: "a test".to_owned(),
            })
        });
        failed.expect_err("the work's error");
        assert!(x.hazards(Access::Write).is_empty(), "untouched");
    }

    #[test]
    fn a_writer_is_alone_with_its_buffers() {
        let device = ReferenceDevice::new();
        let (x, y) = (
            Buffer::new(4, "x", Box::new(())),
            Buffer::new(4, "y", Box::new(())),
        );
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (device, x, y, inside) = (&device, &x, &y, &inside);
                scope.spawn(move || {
                    for turn in 0..50 {
                        // In both orders, which must not end in a deadlock.
                        let mut accesses = [(x, Access::Write), (y, Access::Write)];
                        if thread % 2 == 0 {
                            accesses.reverse();
                        }
                        let turn = thread * 50 + turn + 1;
                        ordered(device, "a test", accesses, |_| {
                            assert!(!inside.swap(true, Ordering::SeqCst), "alone");
                            std::thread::yield_now();
                            inside.store(false, Ordering::SeqCst);
                            Ok(((), ticket(device.lane(), turn)))
                        })
                        .expect("ordered");
                    }
                });
            }
        });
    }

    #[test]
    fn copies_arrive_and_are_ordered() {
        let (a, b) = (ReferenceDevice::new(), ReferenceDevice::new());
        let x = a.alloc(16, "x").expect("allocated");
        let y = b.alloc(16, "y").expect("allocated");
        a.write(&x, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("written");
        let place = |device, buffer, offset| Place {
            device,
            buffer,
            offset,
        };
        copy_across(place(&a, &x, 4), place(&b, &y, 8), 4).expect("copied");
        let mut out = [9; 16];
        b.read(&y, 0, &mut out).expect("read");
        assert_eq!(out, [0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0], "y");
        let readers = x.hazards(Access::Write);
        assert!(
            readers.iter().any(|ticket| ticket.lane == b.lane()),
            "a writer of x waits for the copy: {readers:?}"
        );
        let same = copy_across(place(&a, &x, 0), place(&a, &x, 8), 4);
        assert!(matches!(same, Err(DeviceError::Usage { .. })), "{same:?}");
        let outside = copy_across(place(&a, &x, 12), place(&b, &y, 0), 8);
        assert!(
            matches!(outside, Err(DeviceError::Usage { .. })),
            "{outside:?}"
        );
    }
}
