//! `qwen2`: the [`llama`](super::llama) decoder with half-split rope and biases on Q, K and V.

use gemel_core::ops::rope::RopeMode;

use super::llama::{Decoder, Experts, QkNorm};
use super::{Model, ModelError};
use crate::gguf::Metadata;
use crate::weights::Requests;

/// `general.architecture`.
pub const ARCH: &str = "qwen2";

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
        QkNorm::None,
        Experts::None,
    )?))
}
