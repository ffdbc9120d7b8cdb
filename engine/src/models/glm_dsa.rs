//! `glm-dsa`: the [`deepseek32`](super::deepseek32) decoder with an indexer that rotates neighbouring channels, and layers
//! that attend to what an earlier one selected.

use gemel_core::ops::rope::RopeMode;

use super::deepseek32::{Decoder, Kind};
use super::{Model, ModelError, refuse};
use crate::gguf::Metadata;
use crate::weights::Requests;

/// `general.architecture`.
pub const ARCH: &str = "glm-dsa";

/// Reads hyper-parameters and requests tensors.
///
/// # Errors
/// Hyper-parameters or tensors that do not fit.
pub fn load(
    metadata: &Metadata,
    requests: &mut Requests<'_>,
) -> Result<Box<dyn Model>, ModelError> {
    let kind = Kind {
        index_rope: RopeMode::Norm,
        indexed,
    };
    Ok(Box::new(Decoder::load(metadata, requests, ARCH, kind)?))
}

/// Context from which on files without a list are of the model that reuses selections.
const REUSING_CTX: u32 = 1 << 20;

/// Which layers have an indexer: a list of the file; else all, or in the model of a million tokens the first two and then
/// the first of every four.
fn indexed(metadata: &Metadata, arch: &str, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let key = format!("{arch}.attention.indexer.types");
    if metadata.get(&key).is_none() {
        let reuses = metadata.u32(&format!("{arch}.context_length"))? >= REUSING_CTX;
        let own = |layer: usize| !reuses || layer < 2 || (layer - 2).is_multiple_of(4);
        return Ok((0..n_layers).map(own).collect());
    }
    let list = metadata.i32s(&key)?;
    let known = list.iter().all(|kind| [0, 1].contains(kind));
    if !known || list.len() < n_layers || list.first() == Some(&0) {
        return Err(refuse(
            key,
            format!("{list:?}"),
            format!("1 (an indexer) or 0 (none) for each of {n_layers} layers, 1 for the first"),
        ));
    }
    Ok(list[..n_layers].iter().map(|&kind| kind == 1).collect())
}
