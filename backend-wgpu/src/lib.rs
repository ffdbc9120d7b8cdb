//! Executes Gemel's plans on any GPU through wgpu: Vulkan, Metal, DX12, GL.
//!
//! No op is named here: a plan says which source file, entry point, specialisation, parameters and bindings each
//! launch has, and the folder `shaders/` is embedded whole.
//!
//! ```no_run
//! use gemel_core::Device as _;
//! use gemel_wgpu::{WgpuDevice, WgpuOptions};
//!
//! let device = WgpuDevice::open(&WgpuOptions::new("wgpu"))?;
//! println!("{}: {}", device.name(), device.description());
//! # Ok::<(), gemel_core::error::DeviceError>(())
//! ```

mod buffers;
mod caps;
mod device;
mod error;
mod lane;
mod pipelines;
mod profile;
mod record;
pub mod source;

pub use caps::{AdapterInfo, LimitOverrides, WgpuOptions, enumerate};
pub use device::WgpuDevice;
pub use gemel_core::kernel::Progress;
pub use pipelines::check;
