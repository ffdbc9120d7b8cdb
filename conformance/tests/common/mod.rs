//! Steps of a golden model on every device, for tests of what a model remembers.

use std::sync::Arc;

use gemel_conformance::golden::max_difference;
use gemel_core::Device;
use gemel_core::op::DeviceClass;
use gemel_core::reference::ReferenceDevice;
use gemel_cuda::CudaOptions;
use gemel_cuda::emulated::open_emulated;
use gemel_engine::blocks::Head;
use gemel_engine::forward::{Context, StepOutput, StepToken};
use gemel_engine::kv_cache::SeqId;
use gemel_wgpu::{WgpuDevice, WgpuOptions};

/// Every device, or the one that `GEMEL_TEST_DEVICE` names.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let only = std::env::var("GEMEL_TEST_DEVICE").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    if wanted("reference") {
        devices.push(Arc::new(ReferenceDevice::new()));
    }
    if wanted("wgpu") {
        devices.push(Arc::new(
            WgpuDevice::open(&WgpuOptions::new("wgpu")).unwrap(),
        ));
    }
    if wanted("cuda-emulated") {
        devices.push(Arc::new(open_emulated(&CudaOptions::new("cuda")).unwrap()));
    }
    devices
}

/// Logits after each token, appended in one step.
pub(crate) fn step(context: &mut Context, seq: SeqId, ids: &[u32]) -> Vec<Vec<f32>> {
    step_of(context, &[(seq, ids)])
}

/// Logits after each token of several sequences, appended in one step.
pub(crate) fn step_of(context: &mut Context, parts: &[(SeqId, &[u32])]) -> Vec<Vec<f32>> {
    let token = |seq, id| StepToken {
        seq,
        id,
        output: true,
    };
    let tokens: Vec<StepToken> = parts
        .iter()
        .flat_map(|&(seq, ids)| ids.iter().map(move |&id| token(seq, id)))
        .collect();
    let outputs = context.step(&tokens, Head::Logits).unwrap();
    outputs
        .into_iter()
        .map(|output| match output {
            StepOutput::Logits(logits) => logits,
            other => panic!("logits were asked for, but got {other:?}"),
        })
        .collect()
}

/// Logits after each token, one step a token.
pub(crate) fn single_steps(context: &mut Context, seq: SeqId, ids: &[u32]) -> Vec<Vec<f32>> {
    ids.iter()
        .flat_map(|&id| step(context, seq, &[id]))
        .collect()
}

pub(crate) fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter()
        .map(|row| row.iter().map(|v| v.to_bits()).collect())
        .collect()
}

/// Whether steps of another length gave the same: to the bit on devices. The reference computes a step in f64 and
/// rounds its state to f32 behind it.
pub(crate) fn same(device: &Arc<dyn Device>, found: &[Vec<f32>], expected: &[Vec<f32>]) -> bool {
    if device.caps().class == DeviceClass::Reference {
        return max_difference(found, expected) <= 1e-4;
    }
    bits(found) == bits(expected)
}
