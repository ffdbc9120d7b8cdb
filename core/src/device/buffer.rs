//! Device memory as everyone but its backend sees it: shared ownership, and who touched it last.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::lane::Ticket;
use super::next_id;

/// Last writer of a buffer and its readers since.
#[derive(Debug, Default)]
struct Usage {
    writer: Option<Ticket>,
    readers: Vec<Ticket>,
}

struct BufferInner {
    id: u64,
    n_bytes: u64,
    label: String,
    usage: Mutex<Usage>,
    /// Held from the look at `usage` to the note of the ticket: submissions of other threads come before or after.
    gate: RwLock<()>,
    memory: Box<dyn Any + Send + Sync>,
}

/// A buffer held for a submission that is being made.
pub(super) enum Entered<'a> {
    Reading { _guard: RwLockReadGuard<'a, ()> },
    Writing { _guard: RwLockWriteGuard<'a, ()> },
}

/// Shared ownership of device memory.
#[derive(Clone)]
pub struct Buffer(Arc<BufferInner>);

impl Buffer {
    /// Wraps a backend's memory.
    pub fn new(n_bytes: u64, label: impl Into<String>, memory: Box<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(BufferInner {
            id: next_id(),
            n_bytes,
            label: label.into(),
            usage: Mutex::default(),
            gate: RwLock::default(),
            memory,
        }))
    }

    /// Identity: never reused, so that whatever is keyed by it cannot go stale.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.0.n_bytes
    }

    /// What the memory is for.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// The backend's memory, if it is of this backend.
    pub fn memory<M: 'static>(&self) -> Option<&M> {
        self.0.memory.downcast_ref()
    }

    /// Keeps other submissions from conflicting accesses until the guard is dropped.
    pub(super) fn enter(&self, access: Access) -> Entered<'_> {
        match access {
            Access::Read => Entered::Reading {
                _guard: self.0.gate.read().unwrap_or_else(PoisonError::into_inner),
            },
            Access::Write => Entered::Writing {
                _guard: self.0.gate.write().unwrap_or_else(PoisonError::into_inner),
            },
        }
    }

    /// Tickets that must have signalled before the buffer may be accessed this way.
    pub fn hazards(&self, access: Access) -> Vec<Ticket> {
        let usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tickets: Vec<Ticket> = usage.writer.into_iter().collect();
        if access == Access::Write {
            tickets.extend(&usage.readers);
        }
        tickets
    }

    /// Notes that a submission accesses the buffer. Readers of one lane collapse into the latest.
    pub fn note(&self, access: Access, ticket: Ticket) {
        let mut usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        match access {
            Access::Write => {
                usage.writer = Some(ticket);
                usage.readers.clear();
            }
            Access::Read => {
                usage.readers.retain(|reader| reader.lane != ticket.lane);
                usage.readers.push(ticket);
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}#{} ({} bytes)",
            self.label(),
            self.id(),
            self.n_bytes()
        )
    }
}

/// Whether a submission only reads a buffer or may write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Contents stay.
    Read,
    /// Contents may change.
    Write,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_a_reader_for_the_writer() {
        let buffer = Buffer::new(4, "cache", Box::new(()));
        let t = |lane, value| Ticket { lane, value };
        assert!(buffer.hazards(Access::Write).is_empty(), "untouched");
        buffer.note(Access::Write, t(1, 1));
        buffer.note(Access::Read, t(1, 2));
        buffer.note(Access::Read, t(2, 1));
        assert_eq!(
            buffer.hazards(Access::Read),
            [t(1, 1)],
            "reads do not wait for reads"
        );
        assert_eq!(
            buffer.hazards(Access::Write),
            [t(1, 1), t(1, 2), t(2, 1)],
            "a write waits for all"
        );
        buffer.note(Access::Write, t(2, 2));
        assert_eq!(
            buffer.hazards(Access::Write),
            [t(2, 2)],
            "the last writer waited for the others"
        );
    }
}
