//! The op set of Gemel and everything that can be said about it without a device.
//!
//! In reading order: element types, block formats, tensor descriptors, the op contract, the ops, their reference,
//! graphs of ops, plans made from graphs, and the devices that execute plans.
#![forbid(unsafe_code)]

pub mod device;
pub mod dtype;
pub mod error;
pub mod format;
pub mod graph;
pub mod kernel;
pub mod op;
pub mod ops;
pub mod plan;
pub mod reference;
pub mod source;
pub mod tensor;

pub use device::Device;
pub use dtype::DType;
pub use graph::Graph;
pub use tensor::TensorDesc;

/// Tokens in one page of a key or value cache.
///
/// A multiple of every pooling ratio and of every kernel's tile of cells.
pub const PAGE: usize = 64;
