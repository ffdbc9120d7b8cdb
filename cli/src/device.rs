//! From a `--device` string to a device: the only place that names backends.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use gemel_core::Device;
use gemel_core::op::DeviceClass;
use gemel_core::reference::ReferenceDevice;
use gemel_wgpu::{LimitOverrides, Progress, WgpuDevice, WgpuOptions};

use crate::options::ModelArgs;
use crate::session::count_bar;

/// Opens the device that the arguments name.
pub(crate) fn open(args: &ModelArgs) -> Result<Arc<dyn Device>> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .context("setting the number of threads (-t)")?;
    }
    if args.device == "reference" {
        eprintln!("running on the reference: exact and slow");
        return Ok(Arc::new(ReferenceDevice::new()));
    }
    let bar = count_bar("compiling kernels");
    let mut options = WgpuOptions::new(args.device.clone());
    options.progress = Some(Progress(Arc::new(move |done, total| {
        // A handful of kernels is not worth a bar.
        if total > 4 {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            if done == total {
                bar.finish_and_clear();
                bar.reset();
            }
        }
    })));
    if let Some(mib) = args.memory {
        options.limits = Some(LimitOverrides {
            memory_bytes: Some(mib << 20),
            ..LimitOverrides::default()
        });
    }
    let device = WgpuDevice::open(&options)?;
    if device.caps().class == DeviceClass::Software {
        eprintln!(
            "no GPU in use: {} computes on the CPU, slowly",
            device.description()
        );
    }
    Ok(Arc::new(device))
}
