//! The state of a device that everyone who works for it shares: its name, how long it may be waited for, whether it
//! was lost; and the errors that carry these.

use core::time::Duration;
use std::sync::OnceLock;

use crate::error::DeviceError;

/// Name, deadline and state of a device.
#[derive(Debug)]
pub struct Health {
    /// The name users select it by.
    pub name: String,
    /// How long a wait may take.
    pub deadline: Duration,
    lost: OnceLock<String>,
}

impl Health {
    /// A device that works.
    pub fn new(name: String, deadline: Duration) -> Self {
        Self {
            name,
            deadline,
            lost: OnceLock::new(),
        }
    }

    /// A mistake of the caller.
    pub fn usage(&self, what: impl Into<String>) -> DeviceError {
        DeviceError::Usage {
            device: self.name.clone(),
            what: what.into(),
        }
    }

    /// A failure of the driver.
    pub fn driver(&self, message: impl Into<String>) -> DeviceError {
        DeviceError::Driver {
            device: self.name.clone(),
            message: message.into(),
        }
    }

    /// A wait that took too long.
    pub fn timeout(&self, what: &str) -> DeviceError {
        DeviceError::Timeout {
            device: self.name.clone(),
            what: what.to_owned(),
            seconds: self.deadline.as_secs(),
        }
    }

    /// From now on everything fails with [`DeviceError::Lost`]. Only the first reason counts.
    pub fn lose(&self, reason: impl Into<String>) {
        let _ = self.lost.set(reason.into());
    }

    /// An error if the device was lost.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            Some(reason) => Err(DeviceError::Lost {
                device: self.name.clone(),
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// What is left of the deadline after a wait of so long; `None` when it has passed.
    pub fn left(&self, waited: Duration) -> Option<Duration> {
        self.deadline
            .checked_sub(waited)
            .filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_counts() {
        let health = Health::new("d:0".to_owned(), Duration::from_secs(3));
        assert!(health.check().is_ok(), "works");
        health.lose("unplugged");
        health.lose("later");
        let error = health.check().unwrap_err().to_string();
        assert!(
            error.contains("d:0") && error.contains("unplugged"),
            "{error}"
        );
        let timeout = health.timeout("plan a").to_string();
        assert_eq!(timeout, "d:0: waited 3 s for plan a", "names all");
    }

    #[test]
    fn deadlines_pass() {
        let second = Duration::from_secs(1);
        let health = Health::new(String::new(), 3 * second);
        assert_eq!(health.left(second), Some(2 * second), "time is left");
        assert_eq!(health.left(3 * second), None, "none is left");
        assert_eq!(health.left(9 * second), None, "long ago");
    }
}
