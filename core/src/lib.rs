//! The op set of Gemel and everything that can be said about it without a device.
#![forbid(unsafe_code)]

pub mod dtype;
pub mod format;

pub use dtype::DType;
