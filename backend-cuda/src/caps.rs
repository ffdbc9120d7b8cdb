//! Devices: which there are, what they can do, which one is meant.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use gemel_core::error::DeviceError;
use gemel_core::kernel::Progress;
use gemel_core::op::{Caps, DeviceClass};

use crate::error::Fault;
use crate::launch::{self, Properties};
use crate::modules;
use crate::peer::PeerAccess;

/// The least compute capability: Turing, which has the matrix instructions that the kernels use.
const LEAST_COMPUTE: (u32, u32) = (7, 5);

/// The least version of the driver's interface: graphs are made by `cuGraphInstantiateWithFlags`.
const LEAST_DRIVER: (u32, u32) = (11, 4);

/// How to open a device.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which device: `cuda` (the first) or `cuda:1` (by the number that `gemel devices` prints). Anything from a `#`
    /// on only makes the name unique: `cuda:0#0` and `cuda:0#1` are two devices on one GPU.
    pub select: String,
    /// Treat the device as one of this class.
    pub class: Option<DeviceClass>,
    /// Pretend to be a smaller device.
    pub limits: Option<LimitOverrides>,
    /// How long a wait may take.
    pub deadline: Duration,
    /// Whether copies from other devices may use peer access.
    pub peer_access: PeerAccess,
    /// Await each launch, so that a failure names its kernel; slow, for finding faults.
    pub checked: bool,
    /// Told about the progress of compiling kernels.
    pub progress: Option<Progress>,
    /// Kernel files that replace embedded ones or come in addition: name (`NAME.cu`, `lib/NAME.cuh`) to text.
    pub sources: BTreeMap<String, String>,
    /// Where compiled kernels are kept; by default `$GEMEL_CACHE/cubins`, or `gemel/cubins` in the user's cache
    /// folder.
    pub cache: Option<PathBuf>,
}

impl CudaOptions {
    /// The usual options for this selection.
    pub fn new(select: impl Into<String>) -> Self {
        Self {
            select: select.into(),
            class: None,
            limits: None,
            deadline: Duration::from_secs(120),
            peer_access: PeerAccess::default(),
            checked: false,
            progress: None,
            sources: BTreeMap::new(),
            cache: None,
        }
    }
}

/// Limits lower than the device's, for tests and for leaving memory to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitOverrides {
    /// Largest binding.
    pub max_binding_bytes: Option<u64>,
    /// Largest buffer.
    pub max_buffer_bytes: Option<u64>,
    /// Blocks along each axis of a grid.
    pub max_blocks_per_axis: Option<u32>,
    /// Threads in a block.
    pub max_threads_per_block: Option<u32>,
    /// Device memory that may be used; the only limit that may also exceed what was found.
    pub memory_bytes: Option<u64>,
}

/// A device that can execute plans.
#[derive(Clone, Debug)]
pub struct CudaInfo {
    /// The name to select it by: `cuda:0`.
    pub name: String,
    /// What the hardware calls itself.
    pub device: String,
    /// Compute capability: `(9, 0)`.
    pub compute: (u32, u32),
    /// Version of the driver's interface and of the compiler.
    pub driver: String,
    /// Capabilities of a device opened on it.
    pub caps: Caps,
    pub(crate) ordinal: usize,
}

impl fmt::Display for CudaInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute;
        write!(
            f,
            "{}: {} (compute capability {major}.{minor}, {}, {})",
            self.name,
            self.device,
            self.caps.class.name(),
            self.driver
        )
    }
}

/// The devices of this machine, in the order of the driver's numbers.
///
/// # Errors
/// One line that says why there is none: no driver, a driver that fails, no device that is new enough, no compiler.
pub fn enumerate() -> Result<Vec<CudaInfo>, String> {
    find_driver()?;
    let version = modules::nvrtc_version()?;
    devices(&format!("NVRTC {}.{}", version.0, version.1))
}

fn find_driver() -> Result<(), String> {
    if launch::is_present() {
        Ok(())
    } else {
        Err("the driver library (libcuda) was not found; install NVIDIA's driver".to_owned())
    }
}

/// The devices of the driver, whoever compiles for them.
pub(crate) fn devices(compiler: &str) -> Result<Vec<CudaInfo>, String> {
    find_driver()?;
    let failed = |fault: Fault| format!("the driver fails: {fault}");
    launch::init().map_err(failed)?;
    let (major, minor) = launch::version().map_err(failed)?;
    if (major, minor) < LEAST_DRIVER {
        return Err(format!(
            "the driver is too old: it is for CUDA {major}.{minor}, {}.{} is needed; install a newer driver",
            LEAST_DRIVER.0, LEAST_DRIVER.1
        ));
    }
    let driver = format!("driver for CUDA {major}.{minor}, {compiler}");
    let mut found = Vec::new();
    let mut refused = Vec::new();
    for ordinal in 0..launch::n_devices().map_err(failed)? {
        let properties = launch::properties(ordinal).map_err(failed)?;
        if properties.compute < LEAST_COMPUTE {
            let (major, minor) = properties.compute;
            refused.push(format!(
                "cuda:{ordinal} ({}) has compute capability {major}.{minor}, {}.{} is needed",
                properties.name, LEAST_COMPUTE.0, LEAST_COMPUTE.1
            ));
            continue;
        }
        found.push(CudaInfo {
            name: format!("cuda:{ordinal}"),
            caps: caps(&properties),
            device: properties.name,
            compute: properties.compute,
            driver: driver.clone(),
            ordinal,
        });
    }
    match (found.is_empty(), refused.is_empty()) {
        (false, _) => Ok(found),
        (true, true) => Err("the driver knows no device".to_owned()),
        (true, false) => Err(refused.join("; ")),
    }
}

fn caps(properties: &Properties) -> Caps {
    Caps {
        class: if properties.integrated {
            DeviceClass::Integrated
        } else {
            DeviceClass::Discrete
        },
        // Kernels index the bytes of a binding in 32 bits.
        max_binding_bytes: u64::from(u32::MAX) & !255,
        max_buffer_bytes: properties.memory_bytes,
        // What the driver's own allocations are aligned to; copies to shared memory and matrix loads want 128.
        binding_alignment: 256,
        // z and y have the least, and grids fold into y.
        max_blocks_per_axis: properties
            .max_grid
            .into_iter()
            .min()
            .unwrap_or(1)
            .clamp(1, 65_535),
        max_threads_per_block: properties.max_threads_per_block,
        max_shared_bytes: properties.max_shared_bytes,
        // Arguments may take 4 KiB; no op comes near this.
        max_bindings: 64,
        f16: true,
        warp: Some(properties.warp),
        // Since Turing, the least that is accepted.
        tensor_cores: true,
        bf16_tensor_cores: properties.compute >= (8, 0),
        memory_bytes: properties.memory_bytes,
    }
}

/// Capabilities as a device of a compute capability would report them, from documented limits: for choosing and
/// compiling kernels without one. `max_shared_bytes` is what a block may ask for.
pub fn documented_caps(compute: (u32, u32), max_shared_bytes: u32, memory_bytes: u64) -> Caps {
    caps(&Properties {
        name: String::new(),
        compute,
        memory_bytes,
        // Equal on all of them.
        max_threads_per_block: 1024,
        max_shared_bytes,
        max_grid: [0x7fff_ffff, 65_535, 65_535],
        warp: 32,
        integrated: false,
    })
}

/// The device that the options select, with the limits of the options.
pub(crate) fn choose(
    options: &CudaOptions,
    devices: Result<Vec<CudaInfo>, String>,
) -> Result<CudaInfo, DeviceError> {
    let not_found = |available: String| DeviceError::NotFound {
        wanted: options.select.clone(),
        available,
    };
    let devices = devices.map_err(|why| not_found(format!("CUDA is not available: {why}")))?;
    let (wanted, suffix) = match options.select.split_once('#') {
        Some((wanted, suffix)) => (wanted, Some(suffix)),
        None => (options.select.as_str(), None),
    };
    // The emulation is selected by a name of its own.
    let wanted = wanted.replacen("cuda-emulated", "cuda", 1);
    let Some(info) = devices
        .iter()
        .find(|info| wanted == "cuda" || wanted == info.name)
    else {
        let list: Vec<String> = devices.iter().map(ToString::to_string).collect();
        return Err(not_found(format!("there are {}", list.join("; "))));
    };
    let mut info = info.clone();
    if let Some(suffix) = suffix {
        info.name = format!("{}#{suffix}", info.name);
    }
    let caps = &mut info.caps;
    if let Some(class) = options.class {
        caps.class = class;
    }
    if let Some(limits) = &options.limits {
        let least = |value: u64, limit: Option<u64>| limit.map_or(value, |limit| value.min(limit));
        let least32 =
            |value: u32, limit: Option<u32>| limit.map_or(value, |limit| value.min(limit));
        caps.max_binding_bytes = least(caps.max_binding_bytes, limits.max_binding_bytes);
        caps.max_buffer_bytes = least(caps.max_buffer_bytes, limits.max_buffer_bytes);
        caps.max_blocks_per_axis = least32(caps.max_blocks_per_axis, limits.max_blocks_per_axis);
        caps.max_threads_per_block =
            least32(caps.max_threads_per_block, limits.max_threads_per_block);
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> Properties {
        Properties {
            name: "test".to_owned(),
            compute: (8, 0),
            memory_bytes: 8 << 30,
            max_threads_per_block: 1024,
            max_shared_bytes: 48 << 10,
            max_grid: [0x7fff_ffff, 65_535, 65_535],
            warp: 32,
            integrated: false,
        }
    }

    fn infos(n: usize) -> Vec<CudaInfo> {
        (0..n)
            .map(|ordinal| CudaInfo {
                name: format!("cuda:{ordinal}"),
                device: "test".to_owned(),
                compute: (8, 0),
                driver: "driver".to_owned(),
                caps: caps(&properties()),
                ordinal,
            })
            .collect()
    }

    #[test]
    fn grids_stay_within_the_shortest_axis() {
        let caps = caps(&properties());
        assert_eq!(caps.max_blocks_per_axis, 65_535, "of y and z");
        assert_eq!(caps.max_binding_bytes % caps.binding_alignment, 0, "whole");
        assert!(u32::try_from(caps.max_binding_bytes).is_ok(), "32 bits");
    }

    #[test]
    fn devices_are_selected_by_number() {
        let name = |select: &str| choose(&CudaOptions::new(select), Ok(infos(2))).map(|i| i.name);
        assert_eq!(name("cuda").unwrap(), "cuda:0", "the first");
        assert_eq!(name("cuda:1").unwrap(), "cuda:1", "by number");
        assert_eq!(name("cuda:1#b").unwrap(), "cuda:1#b", "made unique");
        assert_eq!(name("cuda-emulated:1").unwrap(), "cuda:1", "emulated");
        let error = name("cuda:2").unwrap_err().to_string();
        assert!(
            error.contains("cuda:0") && error.contains("cuda:1"),
            "{error}"
        );
    }

    #[test]
    fn limits_lower_what_was_found() {
        let options = CudaOptions {
            limits: Some(LimitOverrides {
                max_binding_bytes: Some(1 << 20),
                max_threads_per_block: Some(4096),
                ..LimitOverrides::default()
            }),
            ..CudaOptions::new("cuda")
        };
        let caps = choose(&options, Ok(infos(1))).unwrap().caps;
        assert_eq!(caps.max_binding_bytes, 1 << 20, "lowered");
        assert_eq!(caps.max_threads_per_block, 1024, "never raised");
    }
}
