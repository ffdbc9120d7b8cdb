//! Lanes and tickets: what finishes in order, and how anyone waits for it.
//!
//! A ticket is plain data that buffers, schedulers and messages may keep. Who owns the work behind it is found here,
//! by the lane's number: lanes register when their device opens. A number that is not registered (any more) belongs
//! to a lane whose work has ended, so its tickets have signalled.

use core::time::Duration;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::DeviceError;

/// A point in the work of one lane: signalled once everything up to it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The lane, unique in the process.
    pub lane: u64,
    /// Position in the lane's order.
    pub value: u64,
}

/// The owner of a lane's work.
pub trait Lane: Any + Send + Sync {
    /// Waits on the host until the work up to `value` has finished. `why` says what cannot go on without it.
    ///
    /// # Errors
    /// The lane's deadline passed, naming its work and `why`; its device was lost.
    fn wait(&self, value: u64, why: &str) -> Result<(), DeviceError>;
}

/// The lanes of the process. An entry whose owner is gone is a lane that is about to end.
static LANES: Mutex<BTreeMap<u64, Weak<dyn Lane>>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

/// How long a lane that is being closed may take to end.
const CLOSING: Duration = Duration::from_secs(120);

/// A lane's place in the list of lanes. Its owner drops it when no work is in flight any more; one that cannot say so
/// forgets it, and waits for the lane then end at their deadline.
#[derive(Debug)]
#[must_use = "the lane ends when this is dropped"]
pub struct Registered(u64);

impl Drop for Registered {
    fn drop(&mut self) {
        lanes().remove(&self.0);
        ENDED.notify_all();
    }
}

fn lanes() -> MutexGuard<'static, BTreeMap<u64, Weak<dyn Lane>>> {
    LANES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the tickets of a lane known. The number is one of [`next_id`](super::next_id).
pub fn register(lane: u64, owner: Weak<dyn Lane>) -> Registered {
    lanes().insert(lane, owner);
    Registered(lane)
}

/// The owner of a lane, unless its work has ended or is ending.
pub fn find(lane: u64) -> Option<Arc<dyn Lane>> {
    lanes().get(&lane)?.upgrade()
}

/// Waits on the host for a ticket of any device. `why` says what cannot go on without it.
///
/// # Errors
/// As [`Lane::wait`].
pub fn wait(ticket: Ticket, why: &str) -> Result<(), DeviceError> {
    if let Some(owner) = find(ticket.lane) {
        return owner.wait(ticket.value, why);
    }
    let is_there = |lanes: &mut BTreeMap<u64, Weak<dyn Lane>>| lanes.contains_key(&ticket.lane);
    let (_lanes, waited) = ENDED
        .wait_timeout_while(lanes(), CLOSING, is_there)
        .unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        return Err(DeviceError::Timeout {
            device: format!("lane {} of a closed device", ticket.lane),
            what: format!("ticket {}, which {why} needs", ticket.value),
            seconds: CLOSING.as_secs(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::device::next_id;

    struct Counted {
        done: AtomicU64,
        ended: Arc<AtomicU64>,
        registered: Option<Registered>,
    }

    impl Lane for Counted {
        fn wait(&self, value: u64, why: &str) -> Result<(), DeviceError> {
            if value <= self.done.load(Ordering::SeqCst) {
                return Ok(());
            }
            Err(DeviceError::Timeout {
                device: "counted".to_owned(),
                what: format!("ticket {value}, which {why} needs"),
                seconds: 0,
            })
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            // The owner is gone, its work is not.
            std::thread::sleep(Duration::from_millis(20));
            self.ended.store(1, Ordering::SeqCst);
            drop(self.registered.take());
        }
    }

    fn open(done: u64) -> (u64, Arc<Counted>) {
        let lane = next_id();
        let owner = Arc::new_cyclic(|weak: &Weak<Counted>| Counted {
            done: AtomicU64::new(done),
            ended: Arc::default(),
            registered: Some(register(lane, weak.clone())),
        });
        (lane, owner)
    }

    #[test]
    fn a_ticket_finds_its_lane() {
        let (lane, owner) = open(3);
        wait(Ticket { lane, value: 3 }, "a test").expect("signalled");
        let error = wait(Ticket { lane, value: 4 }, "plan b").unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("counted") && message.contains("plan b"),
            "{message}"
        );
        drop(owner);
        wait(Ticket { lane, value: 4 }, "a test").expect("work of a closed lane has ended");
    }

    #[test]
    fn a_lane_that_is_closing_is_awaited() {
        let (lane, owner) = open(0);
        let ended = owner.ended.clone();
        let closing = std::thread::spawn(move || drop(owner));
        while find(lane).is_some() {
            std::thread::yield_now();
        }
        wait(Ticket { lane, value: 1 }, "a test").expect("it ends");
        assert_eq!(
            ended.load(Ordering::SeqCst),
            1,
            "not before its work has ended"
        );
        closing.join().expect("closed");
    }
}
