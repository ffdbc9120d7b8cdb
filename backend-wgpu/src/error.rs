//! From what wgpu reports to what the device contract promises: typed errors, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gemel_core::error::DeviceError;

/// A lock whose data stays usable after a panic of another thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a scope caught.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The driver ran out of memory.
    OutOfMemory,
    /// wgpu refused a call, or the driver failed.
    Other(String),
}

impl Fault {
    fn new(error: &wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => Self::OutOfMemory,
            wgpu::Error::Validation { description, .. }
            | wgpu::Error::Internal { description, .. } => Self::Other(description.clone()),
        }
    }
}

/// What the callbacks of a device report.
#[derive(Debug, Default)]
struct Reports {
    lost: OnceLock<String>,
    uncaptured: Mutex<Option<String>>,
}

/// The wgpu device with its name and the reports of its callbacks.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) deadline: Duration,
    reports: Arc<Reports>,
    is_gl: bool,
}

/// All GL devices of a process share one context. wgpu panics on whoever waits for it longer than a second, which
/// compiling a kernel can take; here they wait for each other instead.
static GL: Mutex<()> = Mutex::new(());

/// The longest wait that may hold the context of GL.
const GL_WAIT: Duration = Duration::from_millis(100);

impl Gpu {
    pub(crate) fn new(
        name: String,
        device: wgpu::Device,
        queue: wgpu::Queue,
        deadline: Duration,
    ) -> Self {
        let is_gl = device.adapter_info().backend == wgpu::Backend::Gl;
        let reports = Arc::new(Reports::default());
        let of_lost = reports.clone();
        device.set_device_lost_callback(move |reason, message| {
            // Only the first reason counts.
            let _ = of_lost.lost.set(format!("{reason:?}: {message}"));
        });
        let of_error = reports.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&of_error.uncaptured).get_or_insert_with(|| error.to_string());
        }));
        Self {
            name,
            device,
            queue,
            deadline,
            reports,
            is_gl,
        }
    }

    fn exclusive(&self) -> Option<MutexGuard<'static, ()>> {
        self.is_gl.then(|| lock(&GL))
    }

    pub(crate) fn usage(&self, what: impl Into<String>) -> DeviceError {
        DeviceError::Usage {
            device: self.name.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn driver(&self, message: impl Into<String>) -> DeviceError {
        DeviceError::Driver {
            device: self.name.clone(),
            message: message.into(),
        }
    }

    /// An error if the device was lost, or if an earlier call failed outside every scope.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        if let Some(reason) = self.reports.lost.get() {
            return Err(DeviceError::Lost {
                device: self.name.clone(),
                reason: reason.clone(),
            });
        }
        match lock(&self.reports.uncaptured).take() {
            Some(message) => Err(self.driver(message)),
            None => Ok(()),
        }
    }

    /// Runs calls to wgpu and returns the first fault that they caused.
    pub(crate) fn scoped<T>(&self, calls: impl FnOnce() -> T) -> Result<T, Fault> {
        let _exclusive = self.exclusive();
        let filters = [
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Internal,
            wgpu::ErrorFilter::Validation,
        ];
        let guards = filters.map(|filter| self.device.push_error_scope(filter));
        let result = calls();
        let mut fault = None;
        // Scopes close in the reverse order of opening.
        for guard in guards.into_iter().rev() {
            if let Some(error) = pollster::block_on(guard.pop()) {
                fault.get_or_insert(Fault::new(&error));
            }
        }
        match fault {
            Some(fault) => Err(fault),
            None => Ok(result),
        }
    }

    /// As [`scoped`](Self::scoped), for calls whose only foreseeable fault is a lost device.
    pub(crate) fn checked<T>(
        &self,
        what: &str,
        calls: impl FnOnce() -> T,
    ) -> Result<T, DeviceError> {
        let result = self.scoped(calls);
        self.check()?;
        result.map_err(|fault| match fault {
            Fault::OutOfMemory => self.driver(format!("{what}: the driver is out of memory")),
            Fault::Other(message) => self.driver(format!("{what}: {message}")),
        })
    }

    /// Waits until a submission has finished.
    pub(crate) fn wait(
        &self,
        index: &wgpu::SubmissionIndex,
        what: &str,
    ) -> Result<(), DeviceError> {
        let started = Instant::now();
        loop {
            self.check()?;
            let mut left = self.deadline.saturating_sub(started.elapsed());
            if self.is_gl {
                left = left.min(GL_WAIT);
            }
            let poll = wgpu::PollType::Wait {
                submission_index: Some(index.clone()),
                timeout: Some(left),
            };
            // A device that is lost while wgpu waits for it makes wgpu panic instead of returning an error.
            let exclusive = self.exclusive();
            let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(poll)));
            drop(exclusive);
            match polled {
                Ok(Ok(_)) => return self.check(),
                // Some drivers wait at most a few seconds at a time.
                Ok(Err(wgpu::PollError::Timeout)) if started.elapsed() < self.deadline => {}
                Ok(Err(wgpu::PollError::Timeout)) => {
                    return Err(DeviceError::Timeout {
                        device: self.name.clone(),
                        what: what.to_owned(),
                        seconds: self.deadline.as_secs(),
                    });
                }
                Ok(Err(error)) => {
                    self.check()?;
                    return Err(self.driver(format!("waiting for {what}: {error}")));
                }
                Err(_) => {
                    self.check()?;
                    return Err(DeviceError::Lost {
                        device: self.name.clone(),
                        reason: format!("the driver failed while waiting for {what}"),
                    });
                }
            }
        }
    }
}
