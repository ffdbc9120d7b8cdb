//! `qwen3moe`: the [`llama`](super::llama) decoder as [`qwen3`](super::qwen3), with experts in every layer.

use gemel_core::ops::rope::RopeMode;

use super::llama::{Decoder, Experts, QkNorm};
use super::{Model, ModelError};
use crate::gguf::Metadata;
use crate::weights::Requests;

/// `general.architecture`.
pub const ARCH: &str = "qwen3moe";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    Ok(Box::new(Decoder::load(
        metadata,
        requests,
        ARCH,
        RopeMode::Neox,
        QkNorm::PerHead,
        Experts::OfOwnWidth,
    )?))
}
