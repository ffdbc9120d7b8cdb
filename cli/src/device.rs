//! From a `--device` string to a device: the only place that names backends.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use gemel_core::Device;
use gemel_core::op::DeviceClass;
use gemel_core::reference::ReferenceDevice;
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};
use gemel_wgpu::{LimitOverrides, Progress, WgpuDevice, WgpuOptions};

use crate::options::ModelArgs;
use crate::session;

/// Opens the device that the arguments name.
pub(crate) fn open(args: &ModelArgs) -> Result<Arc<dyn Device>> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .context("setting the number of threads (-t)")?;
    }
    if args.device == "reference" {
        note!("running on the reference: exact and slow");
        if args.memory.is_some() {
            note!("--memory has no effect on the reference");
        }
        return Ok(Arc::new(ReferenceDevice::new()));
    }
    let shown = Mutex::new(None);
    let progress = move |done: usize, total: usize| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        // A handful of kernels is not worth a bar, and a bar must not cover text.
        if done >= total || total <= 4 || session::is_answering() {
            *shown = None;
            return;
        }
        let bar = shown.get_or_insert_with(|| session::count_bar("compiling kernels"));
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    if is_cuda(&args.device) {
        let mut options = CudaOptions::new(args.device.clone());
        options.progress = Some(Progress(Arc::new(progress)));
        if let Some(mib) = args.memory {
            options.limits = Some(gemel_cuda::LimitOverrides {
                memory_bytes: Some(mib << 20),
                ..gemel_cuda::LimitOverrides::default()
            });
        }
        if args.device.starts_with(EMULATED) {
            note!("no GPU in use: CUDA's kernels run on the CPU, for tests");
            return Ok(Arc::new(open_emulated(&options)?));
        }
        return Ok(Arc::new(CudaDevice::open(&options)?));
    }
    let mut options = WgpuOptions::new(args.device.clone());
    options.progress = Some(Progress(Arc::new(progress)));
    if let Some(mib) = args.memory {
        options.limits = Some(LimitOverrides {
            memory_bytes: Some(mib << 20),
            ..LimitOverrides::default()
        });
    }
    let device = WgpuDevice::open(&options)?;
    if device.caps().class == DeviceClass::Software {
        note!(
            "no GPU in use: {} computes on the CPU, slowly",
            device.description()
        );
    }
    if args.fast && device.caps().class == DeviceClass::Software {
        note!("--fast has no effect here: f32 activations are faster on a software driver");
    }
    Ok(Arc::new(device))
}

/// The CUDA backend on a pretend driver.
const EMULATED: &str = "cuda-emulated";

/// Whether a `--device` string means CUDA: `cuda`, `cuda:1`, or its emulation.
fn is_cuda(device: &str) -> bool {
    device == "cuda" || device.starts_with("cuda:") || device.starts_with(EMULATED)
}
