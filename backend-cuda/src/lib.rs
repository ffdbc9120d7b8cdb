//! Executes Gemel's plans on NVIDIA GPUs through CUDA.
//!
//! No op is named here: a plan says which source file, entry point, specialisation, parameters and bindings each
//! launch has, and the folder `kernels/` is embedded whole. Nothing of CUDA is needed to build or to start; a machine
//! without it gets one line that says what is missing.
//!
//! ```no_run
//! use gemel_core::Device as _;
//! use gemel_cuda::{CudaDevice, CudaOptions};
//!
//! let device = CudaDevice::open(&CudaOptions::new("cuda"))?;
//! println!("{}: {}", device.name(), device.description());
//! # Ok::<(), gemel_core::error::DeviceError>(())
//! ```

mod buffers;
mod caps;
pub mod cubin;
mod device;
pub mod emulated;
mod error;
mod lane;
mod launch;
mod modules;
mod peer;
mod profile;
mod record;
pub mod source;

pub use caps::{CudaInfo, CudaOptions, LimitOverrides, documented_caps, enumerate};
pub use device::CudaDevice;
pub use gemel_core::kernel::Progress;
pub use modules::{check, compiler};
pub use peer::{Link, PeerAccess, Route, links};
