//! Timing of recordings: from submission to finish on the host, and launch by launch on the device where it can tell.

use std::time::{Duration, Instant};

use gemel_core::Device;
use gemel_core::device::{Recording, submit};
use gemel_core::error::DeviceError;

use crate::run::Runner;

/// How long one case is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Sampling ends after this time.
    pub budget: Duration,
    /// Fewest and most samples.
    pub samples: (usize, usize),
}

impl Effort {
    /// For figures that are to be believed.
    pub const FULL: Self = Self {
        budget: Duration::from_millis(300),
        samples: (5, 200),
    };

    /// For tables of many figures.
    pub const BRIEF: Self = Self {
        budget: Duration::from_millis(30),
        samples: (3, 50),
    };

    /// To see that it runs, on devices whose speed means nothing.
    pub const SMOKE: Self = Self {
        budget: Duration::ZERO,
        samples: (1, 1),
    };

    /// What a runner's device deserves.
    pub fn of(runner: &Runner) -> Self {
        if is_emulated(&**runner.device()) {
            Self::SMOKE
        } else {
            Self::FULL
        }
    }
}

/// Whether a device is the emulation of a GPU, whose times say nothing about one.
pub fn is_emulated(device: &dyn Device) -> bool {
    device.name().starts_with("cuda-emulated")
}

/// Times of one recording, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Median from submission to finish.
    pub wall_s: f64,
    /// Median of the sum over its launches, by the device's own clock.
    pub device_s: Option<f64>,
    /// The shortest of all, by the better clock.
    pub least_s: f64,
}

impl Timing {
    /// The device's figure, or the host's where there is none.
    pub fn best_s(self) -> f64 {
        match self.device_s {
            Some(seconds) if seconds > 0.0 => seconds,
            _ => self.wall_s,
        }
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Replays a recording until the effort is spent, after one replay that warms up.
///
/// # Errors
/// What the device reports.
pub fn time(
    device: &dyn Device,
    recording: &Recording,
    effort: Effort,
) -> Result<Timing, DeviceError> {
    let once = || -> Result<f64, DeviceError> {
        let start = Instant::now();
        let pending = submit(device, recording, &[], None)?;
        device.finish(pending)?;
        Ok(start.elapsed().as_secs_f64())
    };
    if effort != Effort::SMOKE {
        once()?;
    }
    let start = Instant::now();
    let (least, most) = effort.samples;
    let (mut walls, mut devices) = (Vec::new(), Vec::new());
    while walls.len() < least || (walls.len() < most && start.elapsed() < effort.budget) {
        walls.push(once()?);
        if let Some(launches) = device.profile(recording)? {
            devices.push(launches.iter().sum::<u64>() as f64 / 1e9);
        }
    }
    let clock = if devices.is_empty() { &walls } else { &devices };
    Ok(Timing {
        least_s: clock.iter().copied().fold(f64::INFINITY, f64::min),
        wall_s: median(walls),
        device_s: (!devices.is_empty()).then(|| median(devices)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn the_median_ignores_outliers() {
        assert!(
            (median(vec![9.0, 1.0, 2.0]) - 2.0).abs() < 1e-12,
            "of three"
        );
        assert!(median(Vec::new()).is_nan(), "of none");
    }

    #[test]
    fn a_recording_takes_time() {
        let runner = Runner::open("reference").unwrap();
        let recorded = runner.record(&cases::of("rms_norm")[0]).unwrap();
        let timing = time(&**runner.device(), &recorded.recording, Effort::SMOKE).unwrap();
        assert!(
            timing.wall_s > 0.0 && timing.device_s.is_none(),
            "{timing:?}"
        );
        assert!(timing.best_s() > 0.0, "falls back to the host's clock");
    }
}
