//! Adapters: which there are, what they can do, which one is meant.
#![allow(
    unsafe_code,
    reason = "the size of device memory is only known to the Vulkan driver"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use gemel_core::error::DeviceError;
use gemel_core::kernel::Progress;
use gemel_core::op::{Caps, DeviceClass};
use wgpu::{Backend, Backends, DeviceType, Features, Limits};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct WgpuOptions {
    /// Which adapter: `wgpu` (the best), `wgpu:1` (by the number that `gemel devices` prints), a backend (`vulkan`,
    /// `metal`, `dx12`, `gl`, also `vulkan:1`) or a part of the adapter's name. Anything from a `#` on only makes
    /// the name unique: `wgpu:0#0` and `wgpu:0#1` are two devices on one adapter.
    pub select: String,
    /// Treat the adapter as one of this class.
    pub class: Option<DeviceClass>,
    /// Pretend to be a smaller device.
    pub limits: Option<LimitOverrides>,
    /// Bounds checks and loop bounds in every shader.
    pub checked: bool,
    /// The driver's validation layers, where installed.
    pub validation: bool,
    /// How long a wait may take.
    pub deadline: Duration,
    /// Told about the progress of compiling kernels.
    pub progress: Option<Progress>,
    /// Shader files that replace embedded ones or come in addition: name (`NAME`, `lib/NAME`) to text.
    pub sources: BTreeMap<String, String>,
}

impl WgpuOptions {
    /// The usual options for this selection.
    pub fn new(select: impl Into<String>) -> Self {
        Self {
            select: select.into(),
            class: None,
            limits: None,
            checked: false,
            validation: false,
            deadline: Duration::from_secs(120),
            progress: None,
            sources: BTreeMap::new(),
        }
    }
}

/// Limits lower than the adapter's, for tests and for leaving memory to others. They are asked from the driver as
/// well, so that wgpu enforces them.
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
    /// No 16-bit floats in kernels.
    pub no_f16: bool,
    /// No warp-wide operations.
    pub no_subgroups: bool,
    /// Device memory that may be used; the only limit that may also exceed what was found.
    pub memory_bytes: Option<u64>,
}

/// An adapter that can execute plans.
#[derive(Clone, Debug)]
pub struct AdapterInfo {
    /// The name to select it by: `wgpu:0`.
    pub name: String,
    /// What the hardware calls itself.
    pub adapter: String,
    /// `vulkan`, `metal`, `dx12` or `gl`.
    pub backend: &'static str,
    /// Name and version of the driver.
    pub driver: String,
    /// Capabilities of a device opened on it.
    pub caps: Caps,
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} ({}, {}",
            self.name,
            self.adapter,
            self.backend,
            self.caps.class.name()
        )?;
        if !self.driver.is_empty() {
            write!(f, ", {}", self.driver)?;
        }
        f.write_str(")")
    }
}

/// The adapters of this machine, in the order of their numbers, as a device with these options would see them.
pub fn enumerate(options: &WgpuOptions) -> Vec<AdapterInfo> {
    adapters(options.validation)
        .iter()
        .enumerate()
        .map(|(index, adapter)| info(index, adapter, options))
        .collect()
}

/// An adapter with everything asked for.
pub(crate) struct Chosen {
    pub(crate) adapter: wgpu::Adapter,
    pub(crate) info: AdapterInfo,
    pub(crate) features: Features,
    pub(crate) limits: Limits,
}

/// The adapter that the options select.
pub(crate) fn choose(options: &WgpuOptions) -> Result<Chosen, DeviceError> {
    let adapters = adapters(options.validation);
    let keys: Vec<Key> = adapters.iter().map(Key::new).collect();
    let wanted = options.select.split('#').next().unwrap_or_default();
    let Some(index) = select(wanted, &keys) else {
        let available = if adapters.is_empty() {
            INSTALL.to_owned()
        } else {
            let list: Vec<String> = enumerate(options).iter().map(ToString::to_string).collect();
            format!("there are {}", list.join("; "))
        };
        return Err(DeviceError::NotFound {
            wanted: options.select.clone(),
            available,
        });
    };
    let adapter = adapters[index].clone();
    let mut info = info(index, &adapter, options);
    if let Some((_, suffix)) = options.select.split_once('#') {
        info.name = format!("{}#{suffix}", info.name);
    }
    let (features, limits) = requested(&adapter, options);
    Ok(Chosen {
        adapter,
        info,
        features,
        limits,
    })
}

/// What to do on a machine without adapters.
const INSTALL: &str = "no graphics adapter was found: install the driver of the GPU and the Vulkan loader \
    (Debian and Ubuntu: libvulkan1 with mesa-vulkan-drivers, which also renders on the CPU, or NVIDIA's driver; \
    Fedora: vulkan-loader with mesa-vulkan-drivers; macOS and Windows bring their own)";

/// The adapters of the process, found once: loading drivers is slow, some do not survive being unloaded, and two
/// enumerations of GL would share one context without knowing of each other.
///
/// Only adapters with compute shaders. GL comes last, because it shows the GPUs of the other backends again.
fn adapters(validation: bool) -> &'static [wgpu::Adapter] {
    static ADAPTERS: [OnceLock<Vec<wgpu::Adapter>>; 2] = [OnceLock::new(), OnceLock::new()];
    ADAPTERS[usize::from(validation)].get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = backends();
        // Without DEBUG the validation layer has nobody to report to.
        descriptor.flags = if validation {
            wgpu::InstanceFlags::VALIDATION | wgpu::InstanceFlags::DEBUG
        } else {
            wgpu::InstanceFlags::empty()
        };
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = pollster::block_on(instance.enumerate_adapters(backends()));
        adapters.retain(|adapter| {
            let needed = wgpu::DownlevelFlags::COMPUTE_SHADERS;
            adapter.get_downlevel_capabilities().flags.contains(needed)
                && adapter.limits().max_storage_buffers_per_shader_stage >= 4
        });
        adapters.sort_by_key(|adapter| {
            let key = Key::new(adapter);
            (key.is_gl(), key.rank)
        });
        adapters
    })
}

/// All native backends, or those that the environment variable `WGPU_BACKEND` lists.
fn backends() -> Backends {
    let native = Backends::VULKAN | Backends::METAL | Backends::DX12 | Backends::GL;
    Backends::from_env().unwrap_or(native) & native
}

/// What the selection looks at.
#[derive(Clone, Debug)]
struct Key {
    name: String,
    backend: &'static str,
    rank: u8,
}

impl Key {
    fn new(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        Self {
            name: info.name,
            backend: backend_name(info.backend),
            rank: match info.device_type {
                DeviceType::DiscreteGpu => 0,
                DeviceType::IntegratedGpu => 1,
                DeviceType::VirtualGpu => 2,
                DeviceType::Other => 3,
                DeviceType::Cpu => 4,
            },
        }
    }

    fn is_gl(&self) -> bool {
        self.backend == "gl"
    }
}

/// Index of the adapter that is meant. `keys` are in the order of the adapters' numbers.
fn select(wanted: &str, keys: &[Key]) -> Option<usize> {
    let best = |among: &dyn Fn(&Key) -> bool| {
        let candidates = keys.iter().enumerate().filter(|(_, key)| among(key));
        // The first of the best class: numbers put GL last.
        candidates.min_by_key(|(_, key)| key.rank).map(|(i, _)| i)
    };
    let lower = wanted.trim().to_lowercase();
    let (head, number) = match lower.split_once(':') {
        Some((head, number)) => (head, number.parse::<usize>().ok()),
        None => (lower.as_str(), None),
    };
    if ["wgpu", "vulkan", "metal", "dx12", "gl"].contains(&head) {
        let among = |key: &Key| head == "wgpu" || key.backend == head;
        if head == lower {
            return best(&among);
        }
        if let Some(number) = number {
            let mut numbered = keys.iter().enumerate().filter(|(_, key)| among(key));
            return numbered.nth(number).map(|(index, _)| index);
        }
    }
    if lower.is_empty() {
        return best(&|_| true);
    }
    best(&|key| key.name.to_lowercase().contains(&lower))
}

fn backend_name(backend: Backend) -> &'static str {
    match backend {
        Backend::Vulkan => "vulkan",
        Backend::Metal => "metal",
        Backend::Dx12 => "dx12",
        Backend::Gl => "gl",
        Backend::BrowserWebGpu => "webgpu",
        Backend::Noop => "noop",
    }
}

fn info(index: usize, adapter: &wgpu::Adapter, options: &WgpuOptions) -> AdapterInfo {
    let found = adapter.get_info();
    AdapterInfo {
        name: format!("wgpu:{index}"),
        adapter: found.name,
        backend: backend_name(found.backend),
        driver: format!("{} {}", found.driver, found.driver_info)
            .trim()
            .to_owned(),
        caps: caps(adapter, options),
    }
}

/// Features and limits to ask for: all that the adapter has and kernels may use, less what is overridden.
fn requested(adapter: &wgpu::Adapter, options: &WgpuOptions) -> (Features, Limits) {
    let overrides = options.limits.clone().unwrap_or_default();
    let mut wanted = Features::SHADER_F16 | Features::SUBGROUP | Features::TIMESTAMP_QUERY;
    if overrides.no_f16 {
        wanted.remove(Features::SHADER_F16);
    }
    if overrides.no_subgroups {
        wanted.remove(Features::SUBGROUP);
    }
    let mut limits = adapter.limits();
    let lower = |limit: &mut u32, to: Option<u32>| *limit = to.unwrap_or(*limit).min(*limit);
    let lower_bytes = |limit: &mut u64, to: Option<u64>| *limit = to.unwrap_or(*limit).min(*limit);
    lower_bytes(
        &mut limits.max_storage_buffer_binding_size,
        overrides.max_binding_bytes,
    );
    lower_bytes(&mut limits.max_buffer_size, overrides.max_buffer_bytes);
    lower(
        &mut limits.max_compute_workgroups_per_dimension,
        overrides.max_blocks_per_axis,
    );
    for limit in [
        &mut limits.max_compute_invocations_per_workgroup,
        &mut limits.max_compute_workgroup_size_x,
        &mut limits.max_compute_workgroup_size_y,
        &mut limits.max_compute_workgroup_size_z,
    ] {
        lower(limit, overrides.max_threads_per_block);
    }
    (adapter.features() & wanted, limits)
}

/// Capabilities in the words of the definitions.
fn caps(adapter: &wgpu::Adapter, options: &WgpuOptions) -> Caps {
    let info = adapter.get_info();
    let (features, limits) = requested(adapter, options);
    let class = options.class.unwrap_or(match info.device_type {
        DeviceType::DiscreteGpu | DeviceType::VirtualGpu => DeviceClass::Discrete,
        DeviceType::IntegratedGpu | DeviceType::Other => DeviceClass::Integrated,
        DeviceType::Cpu => DeviceClass::Software,
    });
    // Bindings are counted in whole words, and kernels index words with 32 bits.
    let aligned = |bytes: u64| bytes.min(u64::from(u32::MAX)) & !255;
    let overridden = options.limits.as_ref().and_then(|l| l.memory_bytes);
    Caps {
        class,
        max_binding_bytes: aligned(
            limits
                .max_storage_buffer_binding_size
                .min(limits.max_buffer_size),
        ),
        max_buffer_bytes: limits.max_buffer_size & !255,
        binding_alignment: u64::from(limits.min_storage_buffer_offset_alignment),
        max_blocks_per_axis: limits.max_compute_workgroups_per_dimension,
        max_threads_per_block: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_shared_bytes: limits.max_compute_workgroup_storage_size,
        max_bindings: limits.max_storage_buffers_per_shader_stage,
        f16: features.contains(Features::SHADER_F16),
        // Where a driver picks the size per kernel, a definition cannot count on one.
        warp: (features.contains(Features::SUBGROUP)
            && info.subgroup_min_size == info.subgroup_max_size)
            .then_some(info.subgroup_max_size),
        // WGSL has no such instruction without experimental features.
        tensor_cores: false,
        bf16_tensor_cores: false,
        memory_bytes: overridden.unwrap_or_else(|| memory_bytes(adapter, info.device_type)),
    }
}

/// Device memory that may be used: nine tenths of what the driver reports, three quarters of the machine's for
/// devices that share it.
fn memory_bytes(adapter: &wgpu::Adapter, device_type: DeviceType) -> u64 {
    let shared = system_memory().map_or(4 << 30, |bytes| bytes / 4 * 3);
    match (device_type, heap_bytes(adapter)) {
        (DeviceType::Cpu, _) | (_, None) => shared,
        (DeviceType::DiscreteGpu | DeviceType::VirtualGpu, Some(bytes)) => bytes / 10 * 9,
        (DeviceType::IntegratedGpu | DeviceType::Other, Some(bytes)) => shared.min(bytes / 10 * 9),
    }
}

/// The largest device-local heap, where the driver tells.
#[cfg(any(target_os = "linux", target_os = "android", windows))]
fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handle is only read, and not destroyed.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, which the adapter keeps alive.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
    memory
        .memory_heaps
        .iter()
        .take(memory.memory_heap_count as usize)
        .filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0)
        .map(|heap| heap.size)
        .max()
}

#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
fn heap_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Memory of the machine, or of the container that the process is confined to.
fn system_memory() -> Option<u64> {
    let total = meminfo_total(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let confined = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    Some(confined.unwrap_or(total).min(total))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn meminfo_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, backend: &'static str, rank: u8) -> Key {
        Key {
            name: name.to_owned(),
            backend,
            rank,
        }
    }

    #[test]
    fn selection_prefers_the_better_class_and_the_native_interface() {
        let keys = [
            key("GeForce RTX 3090", "vulkan", 0),
            key("Intel Arc", "vulkan", 1),
            key("llvmpipe (LLVM)", "vulkan", 4),
            key("GeForce RTX 3090/PCIe", "gl", 0),
        ];
        for (wanted, index) in [
            ("wgpu", Some(0)),
            ("", Some(0)),
            ("wgpu:2", Some(2)),
            ("wgpu:4", None),
            ("wgpu:x", None),
            ("vulkan:1", Some(1)),
            ("gl", Some(3)),
            ("gl:0", Some(3)),
            ("Vulkan", Some(0)),
            ("metal", None),
            ("arc", Some(1)),
            ("LLVMPIPE", Some(2)),
            ("rtx 3090", Some(0)),
            ("radeon", None),
        ] {
            assert_eq!(select(wanted, &keys), index, "{wanted}");
        }
        let only_gl = [key("llvmpipe", "vulkan", 4), key("Old GPU", "gl", 1)];
        assert_eq!(
            select("wgpu", &only_gl),
            Some(1),
            "a GPU through GL beats a software one"
        );
    }

    #[test]
    fn memory_of_the_machine_is_read() {
        let text = "MemTotal:       24689748 kB\nMemFree:  100 kB\n";
        assert_eq!(meminfo_total(text), Some(24_689_748 * 1024), "kibibytes");
        assert_eq!(meminfo_total("nothing"), None, "no such line");
    }
}
