//! From what wgpu reports to what the device contract promises: typed errors, never a panic.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gemel_core::device::Health;
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

/// The wgpu device with what its callbacks report.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    health: Arc<Health>,
    /// The first error outside every scope.
    uncaptured: Arc<Mutex<Option<String>>>,
    is_gl: bool,
}

impl Deref for Gpu {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.health
    }
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
        let health = Arc::new(Health::new(name, deadline));
        let of_lost = health.clone();
        device.set_device_lost_callback(move |reason, message| {
            of_lost.lose(format!("{reason:?}: {message}"));
        });
        let uncaptured = Arc::<Mutex<Option<String>>>::default();
        let of_error = uncaptured.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&of_error).get_or_insert_with(|| error.to_string());
        }));
        Self {
            device,
            queue,
            health,
            uncaptured,
            is_gl,
        }
    }

    fn exclusive(&self) -> Option<MutexGuard<'static, ()>> {
        self.is_gl.then(|| lock(&GL))
    }

    /// An error if the device was lost, or if an earlier call failed outside every scope.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.health.check()?;
        match lock(&self.uncaptured).take() {
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
            let left = self.left(started.elapsed()).unwrap_or_default();
            let left = if self.is_gl { left.min(GL_WAIT) } else { left };
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
                Ok(Err(wgpu::PollError::Timeout)) if self.left(started.elapsed()).is_some() => {}
                Ok(Err(wgpu::PollError::Timeout)) => return Err(self.timeout(what)),
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
