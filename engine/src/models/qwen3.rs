//! `qwen3`: the [`llama`](super::llama) decoder with half-split rope and per-head norms of queries and keys.

use gemel_core::ops::rope::RopeMode;

use super::llama::{Decoder, Experts, QkNorm};
use super::{Model, ModelError};
use crate::gguf::Metadata;
use crate::weights::Requests;

/// `general.architecture`.
pub const ARCH: &str = "qwen3";

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
        Experts::None,
    )?))
}
