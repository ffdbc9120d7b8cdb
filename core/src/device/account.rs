//! Device memory by the engine's own account, so that a limit can be set, and is known before a driver refuses:
//! drivers over-commit, so asking them tells little.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Memory;
use crate::error::DeviceError;

/// The account of a device.
#[derive(Clone, Debug)]
pub struct Account(Arc<Mutex<Memory>>);

impl Account {
    /// An account of so many bytes.
    pub fn new(total: u64) -> Self {
        Self(Arc::new(Mutex::new(Memory {
            used: 0,
            peak: 0,
            total,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures.
    pub fn read(&self) -> Memory {
        *self.lock()
    }

    /// Reserves memory, if there is enough.
    pub fn take(&self, n_bytes: u64) -> Option<Reserved> {
        let mut memory = self.lock();
        let used = memory.used.checked_add(n_bytes)?;
        if used > memory.total {
            return None;
        }
        memory.used = used;
        memory.peak = memory.peak.max(used);
        Some(Reserved {
            account: self.clone(),
            n_bytes,
        })
    }

    /// The error of an allocation that does not fit.
    pub fn exhausted(&self, device: &str, what: &str, needed: u64) -> DeviceError {
        let memory = self.read();
        DeviceError::OutOfMemory {
            device: device.to_owned(),
            what: what.to_owned(),
            needed,
            free: memory.total.saturating_sub(memory.used),
            total: memory.total,
        }
    }
}

/// A share of the account, given back when dropped.
#[derive(Debug)]
#[must_use = "the share is given back when this is dropped"]
pub struct Reserved {
    account: Account,
    n_bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account.lock().used -= self.n_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_end_at_the_total_and_come_back() {
        let account = Account::new(100);
        let first = account.take(60).expect("there");
        assert!(account.take(41).is_none(), "more than is left");
        assert!(account.take(u64::MAX).is_none(), "no overflow");
        let error = account.exhausted("d", "cache", 41).to_string();
        assert!(
            error.contains("41 bytes wanted for cache, 40 of 100"),
            "{error}"
        );
        let second = account.take(40).expect("all of it");
        drop(first);
        let memory = account.read();
        assert_eq!((memory.used, memory.peak), (40, 100), "given back");
        drop(second);
        assert_eq!(account.read().used, 0, "empty");
    }
}
