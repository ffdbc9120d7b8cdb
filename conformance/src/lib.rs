//! Holds every op on every backend against the f64 reference.
//!
//! One table of [`cases`] an op serves tests, benchmarks and the support table. [`fill`] makes the operands of a
//! case from its id, [`prepare`] makes a case ready,
//! [`run`] executes cases on a device in poisoned memory with guard words, [`compare`] judges what
//! came back, [`report`] writes it down.
//!
//! ```
//! use gemel_conformance::{cases, report::Status, run::Runner};
//!
//! let cases = cases::of("rms_norm");
//! let mut runner = Runner::open("reference")?;
//! let outcomes = runner.test(&cases[..4]);
//! assert!(outcomes.iter().all(|outcome| outcome.status == Status::Pass));
//! # Ok::<(), gemel_core::error::DeviceError>(())
//! ```
#![forbid(unsafe_code)]

pub mod bench;
pub mod bisect;
pub mod cases;
pub mod cliffs;
pub mod compare;
pub mod compile;
pub mod estimate;
pub mod fill;
pub mod golden;
pub mod hollow;
pub mod peak;
mod pools;
pub mod prepare;
pub mod report;
pub mod run;
pub mod support;
pub mod targets;
