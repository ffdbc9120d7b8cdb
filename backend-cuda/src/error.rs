//! From what the driver reports to what the device contract promises: typed errors, never a panic.

use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gemel_core::device::Health;
use gemel_core::error::DeviceError;

/// A lock whose data stays usable after a panic of another thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call to the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The driver's number (`CUresult`); `None` if the driver does not have the function.
    pub(crate) code: Option<u32>,
    /// What was called, and the driver's words.
    pub(crate) text: String,
}

impl Fault {
    /// The driver or the host ran out of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == Some(2)
    }

    /// Nothing works on the context any more: a kernel or the hardware failed, or the device is gone.
    ///
    /// CUDA calls these errors sticky: every later call returns them too.
    fn is_fatal(&self) -> bool {
        matches!(
            self.code,
            Some(4 | 46 | 100 | 201 | 214 | 226 | 700 | 702 | 709 | 710 | 714..=719)
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The state of a device, and what its driver's faults mean for it.
#[derive(Debug)]
pub(crate) struct Gpu(Health);

impl Deref for Gpu {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.0
    }
}

impl Gpu {
    pub(crate) fn new(name: String, deadline: Duration) -> Self {
        Self(Health::new(name, deadline))
    }

    /// The error of a call that failed while doing `what`.
    pub(crate) fn fault(&self, what: &str, fault: &Fault) -> DeviceError {
        if fault.is_fatal() {
            self.lose(format!("{what}: {fault}"));
        }
        match self.check() {
            Err(lost) => lost,
            Ok(()) => self.driver(format!("{what}: {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: u32) -> Fault {
        Fault {
            code: Some(code),
            text: format!("code {code}"),
        }
    }

    #[test]
    fn a_failed_kernel_loses_the_device_for_good() {
        let gpu = Gpu::new("cuda:0".to_owned(), Duration::from_secs(1));
        assert!(
            matches!(gpu.fault("copying", &fault(1)), DeviceError::Driver { .. }),
            "an invalid value is no loss"
        );
        assert!(gpu.check().is_ok(), "still usable");
        assert!(
            matches!(
                gpu.fault("plan a", &fault(700)),
                DeviceError::Lost { reason, .. } if reason.contains("plan a")
            ),
            "an illegal address is"
        );
        assert!(
            matches!(
                gpu.fault("plan b", &fault(1)),
                DeviceError::Lost { reason, .. } if reason.contains("plan a")
            ),
            "the first reason stays"
        );
    }
}
