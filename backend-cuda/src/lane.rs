//! The lane of a device: its stream, what is in it, and how others wait for it.
//!
//! # Lifetimes
//! The stream runs behind the host. [`State::in_flight`] keeps whatever the work in flight touches, in order, each
//! with an event behind it; entries go when their event is done.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use gemel_core::device::lane::{self, Registered};
use gemel_core::device::{Ticket, next_id};
use gemel_core::error::DeviceError;

use crate::buffers::{Allocation, Lease, Staging};
use crate::error::{Fault, Gpu, lock};
use crate::launch::{Context, Event, Stream};
use crate::peer::Routes;

/// Waits spin this long, then sleep between looks: a decode step is a few milliseconds, and a sleep costs 60 us.
const SPIN: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// What a submission keeps alive.
pub(crate) type Kept = Vec<Arc<dyn Any + Send + Sync>>;

/// The stream of a device and all that is needed to put work into it.
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) gpu: Gpu,
    pub(crate) context: Arc<Context>,
    /// How copies from other devices come here.
    pub(crate) routes: Routes,
    staging: Arc<Staging>,
    state: Mutex<State>,
    /// `None` once it is known that the work will not end.
    registered: Option<Registered>,
}

/// The stream and what is in it.
struct State {
    stream: Stream,
    in_flight: VecDeque<Entry>,
    submitted: u64,
}

/// Work in flight.
struct Entry {
    event: Arc<Event>,
    value: u64,
    label: String,
    /// The work of other devices that it came after: their names and events.
    after: Vec<(String, Arc<Event>)>,
    _kept: Kept,
}

impl State {
    /// Lets go of what has finished. What came after work that failed on another device rests on data that never
    /// came, and its own device is lost with the other.
    fn reap(&mut self, gpu: &Gpu) -> Result<(), Fault> {
        while let Some(entry) = self.in_flight.front() {
            if !entry.event.is_done()? {
                break;
            }
            for (name, event) in &entry.after {
                if let Err(fault) = event.is_done() {
                    gpu.lose(format!(
                        "{} came after work of {name}: {fault}",
                        entry.label
                    ));
                }
            }
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Lane")
            .field("id", &self.id)
            .field("gpu", &self.gpu)
            .field("in_flight", &state.in_flight.len())
            .field("submitted", &state.submitted)
            .finish_non_exhaustive()
    }
}

impl Drop for Lane {
    /// Waits for the work in flight. What does not finish keeps its memory for good: a leak, but no corruption.
    /// Work of a lost device has ended with it.
    fn drop(&mut self) {
        let in_flight = std::mem::take(&mut lock(&self.state).in_flight);
        if let Some(last) = in_flight.back()
            && matches!(poll(&last.event, self.gpu.deadline), Ok(false))
        {
            std::mem::forget(in_flight);
            // Whoever waits for it waits until their deadline.
            std::mem::forget(self.registered.take());
        }
    }
}

impl lane::Lane for Lane {
    fn wait(&self, value: u64, why: &str) -> Result<(), DeviceError> {
        match self.event(value) {
            Some((event, label)) => self.wait(&event, &format!("{label}, which {why} needs")),
            None => self.gpu.check(),
        }
    }
}

/// Waits for an event; false if the deadline passed.
pub(crate) fn poll(event: &Event, deadline: Duration) -> Result<bool, Fault> {
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

/// A lane of this backend by number.
pub(crate) fn find(id: u64) -> Option<Arc<Lane>> {
    let owner: Arc<dyn Any + Send + Sync> = lane::find(id)?;
    owner.downcast().ok()
}

/// Work that was put into a stream, and the read-back behind it.
pub(crate) struct InFlight {
    event: Arc<Event>,
    label: String,
    /// The copy of the read-back and its length.
    read: Option<(Arc<Lease>, usize)>,
}

impl Lane {
    /// An empty lane of a context.
    pub(crate) fn open(
        gpu: Gpu,
        context: &Arc<Context>,
        routes: Routes,
    ) -> Result<Arc<Self>, Fault> {
        let stream = Stream::new(context)?;
        let id = next_id();
        Ok(Arc::new_cyclic(|weak: &Weak<Self>| Self {
            id,
            gpu,
            context: context.clone(),
            routes,
            staging: Staging::new(context.clone()),
            state: Mutex::new(State {
                stream,
                in_flight: VecDeque::new(),
                submitted: 0,
            }),
            registered: Some(lane::register(id, weak.clone())),
        }))
    }

    /// A ticket of this lane.
    pub(crate) fn ticket(&self, value: u64) -> Ticket {
        Ticket {
            lane: self.id,
            value,
        }
    }

    /// The event behind the work of a ticket, and what the work is; `None` if it is known to have finished.
    fn event(&self, value: u64) -> Option<(Arc<Event>, String)> {
        lock(&self.state)
            .in_flight
            .iter()
            .find(|entry| entry.value >= value)
            .map(|entry| (entry.event.clone(), entry.label.clone()))
    }

    /// The events of tickets of other lanes, with their devices' names. Those of this lane need none: its stream runs
    /// in order.
    fn events(
        &self,
        waits: &[Ticket],
        what: &str,
    ) -> Result<Vec<(String, Arc<Event>)>, DeviceError> {
        let mut events = Vec::new();
        for wait in waits.iter().filter(|wait| wait.lane != self.id) {
            match find(wait.lane) {
                Some(other) => {
                    let found = other.event(wait.value);
                    events.extend(found.map(|(event, _)| (other.gpu.name.clone(), event)));
                }
                // It is being closed.
                None => lane::wait(*wait, what)?,
            }
        }
        Ok(events)
    }

    /// Puts work into the stream, after `waits` and with an event behind it; its ticket's value comes back. What
    /// `kept` holds lives until the event is done.
    ///
    /// After a failure part of the work may still be in the stream, so what it touches is kept then, too.
    pub(crate) fn enqueue(
        &self,
        what: &str,
        waits: &[Ticket],
        kept: Kept,
        work: impl FnOnce(&Stream) -> Result<(), Fault>,
    ) -> Result<(Arc<Event>, u64), DeviceError> {
        self.gpu.check()?;
        // Other lanes are asked before this one is locked: they may be asking this one.
        let after = self.events(waits, what)?;
        let failed = |fault: Fault| self.gpu.fault(what, &fault);
        let mut state = lock(&self.state);
        state.reap(&self.gpu).map_err(failed)?;
        let event = Arc::new(Event::new(&self.context, false).map_err(failed)?);
        let worked = after
            .iter()
            .try_for_each(|(_, event)| state.stream.wait(event))
            .and_then(|()| work(&state.stream));
        let recorded = state.stream.record(&event);
        let has_event = recorded.is_ok();
        let result = worked.and(recorded).map_err(failed);
        if has_event {
            state.submitted += 1;
            let value = state.submitted;
            state.in_flight.push_back(Entry {
                event: event.clone(),
                value,
                label: what.to_owned(),
                after,
                _kept: kept,
            });
        } else if self.gpu.check().is_ok() {
            // Without an event nobody can know when the work has finished. That of a lost device has.
            std::mem::forget((kept, after));
        }
        result?;
        Ok((event, state.submitted))
    }

    /// Waits for an event of this lane.
    pub(crate) fn wait(&self, event: &Event, what: &str) -> Result<(), DeviceError> {
        self.gpu.check()?;
        match poll(event, self.gpu.deadline) {
            Ok(true) => self.gpu.check(),
            Ok(false) => Err(self.gpu.timeout(&format!("{what}; {}", self.outstanding()))),
            Err(fault) => Err(self.gpu.fault(what, &fault)),
        }
    }

    /// What is in flight, for the message of a wait that took too long.
    fn outstanding(&self) -> String {
        const NAMED: usize = 4;
        let state = lock(&self.state);
        let mut labels: Vec<&str> = state
            .in_flight
            .iter()
            .take(NAMED)
            .map(|entry| entry.label.as_str())
            .collect();
        let more = format!("{} more", state.in_flight.len().saturating_sub(NAMED));
        if state.in_flight.len() > NAMED {
            labels.push(&more);
        }
        format!("in flight: {}", labels.join(", "))
    }

    /// Waits for all work in flight and lets go of what it held.
    pub(crate) fn drain(&self, what: &str) -> Result<(), DeviceError> {
        if let Some((event, _)) = self.last() {
            self.wait(&event, what)?;
            self.reap(what)?;
        }
        Ok(())
    }

    fn last(&self) -> Option<(Arc<Event>, u64)> {
        let state = lock(&self.state);
        let last = state.in_flight.back()?;
        Some((last.event.clone(), last.value))
    }

    /// Lets go of what has finished.
    pub(crate) fn reap(&self, what: &str) -> Result<(), DeviceError> {
        lock(&self.state)
            .reap(&self.gpu)
            .map_err(|fault| self.gpu.fault(what, &fault))
    }

    /// Pinned memory that begins with these bytes.
    pub(crate) fn stage(&self, bytes: &[u8], padding: usize) -> Result<Arc<Lease>, DeviceError> {
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

    /// Pinned memory of at least this size.
    pub(crate) fn pinned(&self, n_bytes: usize) -> Result<Lease, DeviceError> {
        self.staging
            .take(n_bytes)
            .map_err(|fault| self.gpu.fault("staging", &fault))
    }

    /// Copies staged bytes to the device.
    pub(crate) fn upload(
        &self,
        target: &Arc<Allocation>,
        offset: u64,
        bytes: &[u8],
        padding: usize,
        label: &str,
        waits: &[Ticket],
    ) -> Result<(Arc<Event>, u64), DeviceError> {
        let lease = self.stage(bytes, padding)?;
        let kept: Kept = vec![lease.clone(), target.clone()];
        self.enqueue(label, waits, kept, |stream| {
            stream.upload(
                lease.pinned(),
                &target.memory,
                offset,
                bytes.len() + padding,
            )
        })
    }

    /// Puts work and a copy of a range to the host behind it into the stream.
    pub(crate) fn submit_and_read(
        &self,
        label: &str,
        waits: &[Ticket],
        mut kept: Kept,
        work: impl FnOnce(&Stream) -> Result<(), Fault>,
        read: Option<(&Arc<Allocation>, u64, usize)>,
    ) -> Result<(InFlight, u64), DeviceError> {
        let read = match read {
            Some((source, offset, n_bytes)) => {
                let lease = Arc::new(self.pinned(n_bytes)?);
                kept.push(lease.clone());
                kept.push(source.clone());
                Some((source, offset, n_bytes, lease))
            }
            None => None,
        };
        let (event, value) = self.enqueue(label, waits, kept, |stream| {
            work(stream)?;
            match &read {
                Some((source, offset, n_bytes, lease)) => {
                    stream.download(&source.memory, *offset, *n_bytes, lease.pinned())
                }
                None => Ok(()),
            }
        })?;
        let work = InFlight {
            event,
            label: label.to_owned(),
            read: read.map(|(_, _, n_bytes, lease)| (lease, n_bytes)),
        };
        Ok((work, value))
    }

    /// Waits for work and takes its read-back.
    pub(crate) fn collect(&self, work: &InFlight) -> Result<Vec<u8>, DeviceError> {
        self.wait(&work.event, &work.label)?;
        self.reap(&work.label)?;
        self.gpu.check()?;
        Ok(work
            .read
            .as_ref()
            .and_then(|(lease, n_bytes)| lease.pinned()?.bytes().get(..*n_bytes))
            .unwrap_or_default()
            .to_vec())
    }
}
