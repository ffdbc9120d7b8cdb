//! `qwen3next`: the [`qwen35`](super::qwen35) decoder with experts, plain half-split rope, and value heads that read
//! their key heads in groups.

use gemel_core::ops::delta_rule_step::HeadMap;

use super::qwen35::{Hybrid, Kind};
use super::{Model, ModelError};
use crate::gguf::Metadata;
use crate::weights::Requests;

/// `general.architecture`.
pub const ARCH: &str = "qwen3next";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    let kind = Kind {
        map: HeadMap::Grouped,
        sections: false,
        experts: true,
    };
    Ok(Box::new(Hybrid::load(metadata, requests, ARCH, kind)?))
}
