//! Plans of whole models for a device that nobody has: its capabilities are given, it holds no memory and runs nothing.

use std::any::Any;
use std::sync::Arc;

use anyhow::Result;
use gemel_core::Device;
use gemel_core::device::{
    Buffer, Copied, Memory, Pending, Readback, Recording, Ticket, Traffic, Transfer, Upload,
    next_id,
};
use gemel_core::error::DeviceError;
use gemel_core::op::Caps;
use gemel_core::plan::Plan;
use gemel_engine::blocks::Precision;
use gemel_engine::forward::Context;
use gemel_engine::kv_cache::CacheConfig;
use gemel_engine::models;
use gemel_engine::synthetic::Spec;
use gemel_engine::weights::Requests;

/// Cells of the cache of such a model.
pub const N_CTX: usize = 4096;

/// A synthetic model on such a device, without its weights' bytes: for making plans of up to `n_ubatch` tokens.
///
/// # Errors
/// A model that cannot be loaded.
pub fn open(spec: &Spec, caps: Caps, precision: Precision, n_ubatch: usize) -> Result<Context> {
    let device: Arc<dyn Device> = Arc::new(Hollow {
        caps,
        lane: next_id(),
    });
    let file = spec.open()?;
    let metadata = file.metadata();
    let mut requests = Requests::new(&file, metadata.str("general.architecture")?);
    let model = models::load(metadata, &mut requests)?;
    let weights = requests.reserve(&*device)?;
    let config = CacheConfig {
        n_ctx: N_CTX,
        n_seqs: 1,
        n_ubatch,
        k_type: gemel_core::DType::F16,
        v_type: gemel_core::DType::F16,
    };
    Ok(Context::new(
        device,
        Arc::from(model),
        Arc::new(weights),
        config,
        precision,
    )?)
}

/// A device that holds nothing and runs nothing: for making plans.
#[derive(Debug)]
struct Hollow {
    caps: Caps,
    lane: u64,
}

impl Hollow {
    fn refuse<T>() -> Result<T, DeviceError> {
        Err(DeviceError::Usage {
            device: "hollow".to_owned(),
            what: "plans are made for this device, but it runs none".to_owned(),
        })
    }
}

impl Device for Hollow {
    fn name(&self) -> &'static str {
        "hollow"
    }

    fn description(&self) -> String {
        "documented capabilities, no device".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn memory(&self) -> Memory {
        Memory {
            used: 0,
            peak: 0,
            total: self.caps.memory_bytes,
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn lane(&self) -> u64 {
        self.lane
    }

    fn alloc(&self, n_bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        Ok(Buffer::new(n_bytes, label, Box::new(())))
    }

    fn write(&self, _: &Buffer, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&self, _: &Buffer, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Self::refuse()
    }

    fn record(&self, plan: &Arc<Plan>) -> Result<Recording, DeviceError> {
        let native: Arc<dyn Any + Send + Sync> = Arc::new(());
        Ok(Recording {
            plan: plan.clone(),
            native,
        })
    }

    fn execute(
        &self,
        _: &Recording,
        _: &[Upload<'_>],
        _: Option<&Readback>,
        _: &[Ticket],
    ) -> Result<Pending, DeviceError> {
        Self::refuse()
    }

    fn finish(&self, _: Pending) -> Result<Vec<u8>, DeviceError> {
        Self::refuse()
    }

    fn copy(&self, _: &Transfer<'_>) -> Result<Option<Copied>, DeviceError> {
        Self::refuse()
    }

    fn profile(&self, _: &Recording) -> Result<Option<Vec<u64>>, DeviceError> {
        Self::refuse()
    }
}
