//! Synthetic models: the shapes of published models with weights made from a seed, for measuring without a download.
//!
//! `ARCH:SIZE:TYPE[:SEED]`, e.g. `llama:8b:q4_k`, names one. [`Spec::open`] gives it as a [`GgufFile`] without a file:
//! whatever loads a model loads it, and a tensor's bytes are made when they are asked for, a piece at a time, on all
//! cores. Writing it with [`write::copy`](crate::gguf::write::copy) makes a file with the same bytes, which another
//! engine can load.
//!
//! A byte depends on the seed, the tensor's name and its position alone, so every device, piece size and number of
//! threads gives the same model. Weights are made on the host: a core makes 1 to 3 GB/s of blocks (about a
//! multiplication a word), so that 16 cores keep up with any bus, and the device needs no generator that would have
//! to agree with the host's bit for bit.
//!
//! # Types
//! Every matrix has TYPE, as in a file of one type, but
//!
//! - norms, biases, scales, routers and the projections of indexers are f32;
//! - `output`, or `token_embd` where it is also the output, is `q6_k` if TYPE has fewer bits;
//! - `token_embd` and tables of n-grams are `q8_0` for `nvfp4`, whose second scale belongs to products;
//! - a row that is no whole number of blocks takes the fallback that converters take: `q4_k` -> `q5_0`,
//!   `q5_k` -> `q5_1`, `q6_k` -> `q8_0`, `tq*` -> `q4_0`, other blocks -> `iq4_nl`, anything else `f16`.
//!
//! # Numerics
//! An entry of a matrix with `d_in` columns has mean 0 and standard deviation `max(1 / sqrt(d_in), 1 / 128)`, so that
//! a product of normalised rows is O(1) and the residual stream grows like the root of the layers. Scales of blocks
//! vary by a quarter, carry random signs where the format knows them, and are normal f16 numbers. Where a format has
//! minima they centre its codes.
//!
//! # Source
//! The hyper-parameters are those of the published models, from their configuration files.

mod blocks;
mod latent;
mod outline;
mod sizes;
mod streams;
mod vocab;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use gemel_core::DType;
use gemel_core::dtype::WEIGHT_TYPES;
use rayon::prelude::*;

use crate::gguf::{Gguf, GgufError, GgufFile, TensorInfo, TensorSource};
use blocks::{Fill, UnitScales};
use outline::Outline;
use sizes::FAMILIES;

/// Bytes that one task makes: enough to be worth a task, few enough for all cores to share a piece.
const TASK_BYTES: usize = 128 << 10;

/// A synthetic model: `ARCH:SIZE:TYPE[:SEED]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    arch: &'static str,
    size: &'static str,
    dtype: DType,
    seed: u64,
}

/// What is wrong with the name of a synthetic model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Not three or four parts.
    #[error(
        "a synthetic model is ARCH:SIZE:TYPE[:SEED], e.g. llama:8b:q4_k; `{found}` is not; ARCH is one of {known}"
    )]
    Form {
        /// What was given.
        found: String,
        /// Architectures with their sizes.
        known: String,
    },
    /// No such architecture.
    #[error("no synthetic model has the architecture `{found}`; there are {known}")]
    Arch {
        /// What was given.
        found: String,
        /// Architectures with their sizes.
        known: String,
    },
    /// No such size.
    #[error("there is no synthetic `{arch}` of size `{found}`; there are {known}")]
    Size {
        /// The architecture.
        arch: &'static str,
        /// What was given.
        found: String,
        /// Its sizes.
        known: String,
    },
    /// Not a weight type.
    #[error("`{found}` is not a weight type; there are {known}")]
    Type {
        /// What was given.
        found: String,
        /// The types.
        known: String,
    },
    /// Not a number.
    #[error("the seed `{found}` must be a whole number from 0 to {}", u64::MAX)]
    Seed {
        /// What was given.
        found: String,
    },
}

/// Every architecture with its sizes, for messages and help: `llama (tiny, 135m, ..), ..`.
pub fn known() -> String {
    let families = FAMILIES.iter();
    let families: Vec<String> = families
        .map(|family| format!("{} ({})", family.arch, family.size_names()))
        .collect();
    families.join(", ")
}

/// Every architecture and size.
pub fn models() -> impl Iterator<Item = (&'static str, &'static str)> {
    FAMILIES
        .iter()
        .flat_map(|family| family.sizes.iter().map(|(size, _)| (family.arch, *size)))
}

/// `n` numbers of a seed with mean 0 and standard deviation 1, to fill caches with.
pub(crate) fn rows(seed: u64, n: usize) -> Vec<f32> {
    blocks::unit_floats(seed, n)
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (arch, size, dtype, seed) = match parts[..] {
            [arch, size, dtype] => (arch, size, dtype, "1"),
            [arch, size, dtype, seed] => (arch, size, dtype, seed),
            _ => {
                return Err(SpecError::Form {
                    found: text.to_owned(),
                    known: known(),
                });
            }
        };
        let family = FAMILIES.iter().find(|family| family.arch == arch);
        let family = family.ok_or_else(|| SpecError::Arch {
            found: arch.to_owned(),
            known: known(),
        })?;
        let known_size = family.sizes.iter().find(|(name, _)| *name == size);
        let (size, _) = known_size.ok_or_else(|| SpecError::Size {
            arch: family.arch,
            found: size.to_owned(),
            known: family.size_names(),
        })?;
        let known_type = DType::from_name(dtype).filter(|dtype| WEIGHT_TYPES.contains(dtype));
        let dtype = known_type.ok_or_else(|| SpecError::Type {
            found: dtype.to_owned(),
            known: WEIGHT_TYPES
                .iter()
                .map(|dtype| dtype.name())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        let seed = seed.parse().map_err(|_| SpecError::Seed {
            found: seed.to_owned(),
        })?;
        Ok(Self {
            arch: family.arch,
            size,
            dtype,
            seed,
        })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            arch,
            size,
            dtype,
            seed,
        } = self;
        write!(f, "{arch}:{size}:{dtype}:{seed}")
    }
}

impl Spec {
    /// The model as if it had been opened from a file.
    ///
    /// # Errors
    /// Never for the models of the table: names, types and shapes are those of files.
    pub fn open(&self) -> Result<GgufFile, GgufError> {
        let mut outline = Outline::new(self.arch, &format!("synthetic {self}"), self.dtype);
        let families = FAMILIES.iter().filter(|family| family.arch == self.arch);
        let mut sizes = families.flat_map(|family| family.sizes);
        if let Some((_, build)) = sizes.find(|(name, _)| *name == self.size) {
            build(&mut outline);
        }
        let mut units = UnitScales::default();
        let fills = outline
            .tensors
            .iter()
            .map(|(spec, law)| {
                let fill = Fill::new(self.seed, &spec.name, spec.dtype, law, &mut units);
                (spec.name.clone(), fill)
            })
            .collect();
        let specs: Vec<_> = outline.tensors.into_iter().map(|(spec, _)| spec).collect();
        let gguf = Gguf::from_specs(outline.metadata, &specs)?;
        Ok(GgufFile::from_source(gguf, Box::new(Source { fills })))
    }
}

/// Makes the bytes of tensors.
#[derive(Debug)]
struct Source {
    fills: BTreeMap<String, Fill>,
}

impl TensorSource for Source {
    fn fill(&self, t: &TensorInfo, start: usize, out: &mut [u8]) {
        let Some(fill) = self.fills.get(&t.name) else {
            return;
        };
        out.par_chunks_mut(TASK_BYTES)
            .enumerate()
            .for_each(|(task, out)| fill.fill(start + task * TASK_BYTES, out));
    }
}
