//! A file and a device -> a model ready to run, with the checks that belong between them.

use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::Device;
use gemel_core::dtype::CACHE_TYPES;
use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, DeviceClass};

use crate::blocks::Precision;
use crate::forward::Context;
use crate::gguf::{GgufError, GgufFile, Metadata};
use crate::kv_cache::{CacheConfig, KvCache, KvLayer};
use crate::models::{self, ModelError};
use crate::state::{StateCache, StateLayer};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{Requests, WeightError};

/// Context size when none is asked for, unless the model was trained for less.
const DEFAULT_N_CTX: usize = 4096;

/// What a user may choose when a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Most tokens of a sequence; `None` for the trained context, at most 4096.
    pub n_ctx: Option<usize>,
    /// Most sequences at a time.
    pub n_seqs: usize,
    /// Most tokens of a step.
    pub n_ubatch: usize,
    /// Type of cached keys.
    pub k_type: DType,
    /// Type of cached values.
    pub v_type: DType,
    /// How activations enter quantised products.
    pub precision: Precision,
    /// Where a table of n-gram embeddings goes.
    pub ngram_table: TablePlacement,
}

/// Where a table goes of which a step reads a few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TablePlacement {
    /// To device memory where that leaves room, and the device is not the processor that reads the file itself.
    #[default]
    Auto,
    /// To device memory.
    Device,
    /// Nowhere: it stays in the file, and the host sends rows with each step.
    File,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            n_ctx: None,
            n_seqs: 1,
            n_ubatch: 512,
            k_type: DType::F16,
            v_type: DType::F16,
            precision: Precision::Strict,
            ngram_table: TablePlacement::Auto,
        }
    }
}

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The container.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Hyper-parameters or tensors.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Upload.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An option outside its range.
    #[error("{option} is {found}, but must be {expected}")]
    Option {
        /// The option, with its flag.
        option: &'static str,
        /// The value given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The keys or values of one layer exceed a binding of the device.
    #[error(
        "the keys or values of one layer take {needed_mib} MiB for {n_ctx} tokens, but this device binds at most {limit_mib} MiB; use a smaller context (-c) or cache type (-ctk, -ctv)"
    )]
    CacheBinding {
        /// Of the larger of the two.
        needed_mib: u64,
        /// Context size.
        n_ctx: usize,
        /// The device's limit.
        limit_mib: u64,
    },
    /// The recurrent state of one layer exceeds a binding of the device.
    #[error(
        "the state of one layer takes {needed_mib} MiB for {n_seqs} sequences, but this device binds at most {limit_mib} MiB; use fewer sequences"
    )]
    StateBinding {
        /// Of the largest tensor.
        needed_mib: u64,
        /// Sequences.
        n_seqs: usize,
        /// The device's limit.
        limit_mib: u64,
    },
    /// A table that was asked for in device memory does not fit.
    #[error(
        "the n-gram table takes {table_mib} MiB and the model with it {needed_mib} MiB, but {device} has {free_mib} MiB free; leave it in the file (--ngram-table file)"
    )]
    TableTooLarge {
        /// The table.
        table_mib: u64,
        /// Everything.
        needed_mib: u64,
        /// The device.
        device: String,
        /// What it has.
        free_mib: u64,
    },
    /// Weights and caches need more than the device has.
    #[error(
        "the model needs {needed_mib} MiB ({weights_mib} weights, {cache_mib} cache for {n_ctx} tokens x {n_seqs}), but {device} has {free_mib} MiB free; use a smaller context (-c), cache type (-ctk, -ctv) or model"
    )]
    TooLarge {
        /// Sum.
        needed_mib: u64,
        /// Weights.
        weights_mib: u64,
        /// Caches.
        cache_mib: u64,
        /// Context size.
        n_ctx: usize,
        /// Sequences.
        n_seqs: usize,
        /// The device.
        device: String,
        /// What it has.
        free_mib: u64,
    },
}

/// A loaded model.
#[derive(Debug)]
pub struct Loaded {
    /// Model, caches, plans.
    pub context: Context,
    /// Text <-> ids.
    pub tokenizer: Tokenizer,
    /// The file's metadata.
    pub metadata: Metadata,
    /// Bytes of weights on the device.
    pub weight_bytes: u64,
    /// Bytes of caches on the device.
    pub cache_bytes: u64,
    /// Parameters of the weight matrices.
    pub n_params: u64,
    /// What the file has beyond the plain model, one phrase each.
    pub found: Vec<String>,
    /// Where its table of n-gram embeddings is and why, if it has one.
    pub ngram_table: Option<String>,
}

/// Loads a model. `progress` gets the bytes of the file done so far and in all.
///
/// # Errors
/// See [`LoadError`]; every check that needs no upload comes before the first byte is uploaded.
pub fn load(
    file: &GgufFile,
    device: Arc<dyn Device>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Loaded, LoadError> {
    let metadata = file.metadata();
    let arch = metadata.str("general.architecture")?;
    let mut requests = Requests::new(file, arch);
    let mut model = models::load(metadata, &mut requests)?;
    let tokenizer = Tokenizer::from_metadata(metadata)?;
    let info = model.info().clone();
    let caps = device.caps();

    let config = cache_config(
        options,
        info.n_ctx_train,
        info.widest,
        caps.max_binding_bytes,
    )?;
    check_cache_bindings(&model.kv_layers(), &model.state_layers(), &config, caps)?;
    let mut weight_bytes = requests.n_bytes(caps);
    let cache_bytes = KvCache::n_bytes(&model.kv_layers(), &config)
        + StateCache::n_bytes(&model.state_layers(), &config);
    let memory = device.memory();
    let free = memory.total.saturating_sub(memory.used);
    let n_params = n_params(&requests);
    let mut ngram_table = None;
    if let Some(table) = model.ngrams() {
        let needed = weight_bytes + cache_bytes;
        let (in_file, why) = place_table(
            options.ngram_table,
            table.rows.n_bytes,
            needed,
            free,
            &*device,
        )?;
        ngram_table = Some(why);
        if in_file {
            // Only requests so far: made again without the table.
            requests = Requests::new(file, arch);
            requests.leave_tables_in_file();
            model = models::load(metadata, &mut requests)?;
            weight_bytes = requests.n_bytes(caps);
        }
    }
    if weight_bytes + cache_bytes > free {
        return Err(LoadError::TooLarge {
            needed_mib: (weight_bytes + cache_bytes) >> 20,
            weights_mib: weight_bytes >> 20,
            cache_mib: cache_bytes >> 20,
            n_ctx: config.n_ctx,
            n_seqs: config.n_seqs,
            device: device.name().to_owned(),
            free_mib: free >> 20,
        });
    }
    let found = model.found().to_vec();
    let weights = requests.upload(&*device, progress)?;
    let context = Context::new(
        device,
        Arc::from(model),
        Arc::new(weights),
        config,
        options.precision,
    )?;
    Ok(Loaded {
        context,
        tokenizer,
        metadata: metadata.clone(),
        weight_bytes,
        cache_bytes,
        n_params,
        found,
        ngram_table,
    })
}

/// Parameters of the requested matrices.
fn n_params(requests: &Requests<'_>) -> u64 {
    let sizes = requests
        .matrices()
        .map(|(_, _, shape)| shape.iter().product::<usize>() as u64);
    sizes.sum()
}

/// Whether a table of n-gram embeddings stays in the file, and a line that says where it is and why. `needed` are the
/// bytes of weights and caches, the table's among them.
///
/// # Errors
/// A table that was asked for in device memory and does not fit.
fn place_table(
    placement: TablePlacement,
    table_bytes: u64,
    needed: u64,
    free: u64,
    device: &dyn Device,
) -> Result<(bool, String), LoadError> {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let name = device.name();
    // Activations need room too.
    let fits = needed <= free / 8 * 7;
    let is_host = matches!(
        device.caps().class,
        DeviceClass::Reference | DeviceClass::Software
    );
    let (in_file, why) = match placement {
        TablePlacement::Device if needed > free => {
            return Err(LoadError::TableTooLarge {
                table_mib: mib(table_bytes),
                needed_mib: mib(needed),
                device: name.to_owned(),
                free_mib: free >> 20,
            });
        }
        TablePlacement::Device => (false, format!("in the memory of {name}, as asked for")),
        TablePlacement::File => (
            true,
            "read from the file as needed, as asked for".to_owned(),
        ),
        TablePlacement::Auto if is_host => (
            true,
            format!("read from the file as needed: {name} is the host itself"),
        ),
        TablePlacement::Auto if fits => (
            false,
            format!("in the memory of {name}, which has room for it"),
        ),
        TablePlacement::Auto => (
            true,
            format!(
                "read from the file as needed: the model would take {} MiB with it, and {name} has {} MiB free",
                mib(needed),
                free >> 20
            ),
        ),
    };
    Ok((
        in_file,
        format!("n-gram table, {} MiB: {why}", mib(table_bytes)),
    ))
}

/// Refuses a cache of which one layer exceeds a binding of the device.
fn check_cache_bindings(
    layers: &[KvLayer],
    states: &[StateLayer],
    config: &CacheConfig,
    caps: &Caps,
) -> Result<(), LoadError> {
    let limit = caps.max_binding_bytes.min(caps.max_buffer_bytes);
    let largest = layers
        .iter()
        .map(|layer| KvCache::largest_tensor(layer, config))
        .max();
    let state = states
        .iter()
        .map(|layer| StateCache::largest_tensor(layer, config))
        .max();
    if let Some(needed) = state
        && needed > limit
    {
        return Err(LoadError::StateBinding {
            needed_mib: needed.div_ceil(1 << 20),
            n_seqs: config.n_seqs,
            limit_mib: limit >> 20,
        });
    }
    match largest {
        Some(needed) if needed > limit => Err(LoadError::CacheBinding {
            needed_mib: needed.div_ceil(1 << 20),
            n_ctx: config.n_ctx,
            limit_mib: limit >> 20,
        }),
        _ => Ok(()),
    }
}

/// Checks the options against each other and against the device.
fn cache_config(
    options: &LoadOptions,
    n_ctx_train: usize,
    widest: usize,
    max_binding_bytes: u64,
) -> Result<CacheConfig, LoadError> {
    let refuse = |option, found: String, expected: &str| LoadError::Option {
        option,
        found,
        expected: expected.to_owned(),
    };
    let n_ctx = options.n_ctx.unwrap_or(n_ctx_train.min(DEFAULT_N_CTX));
    if n_ctx == 0 || n_ctx > 1 << 24 {
        return Err(refuse(
            "the context size (-c)",
            n_ctx.to_string(),
            "in 1..=16777216",
        ));
    }
    if options.n_seqs == 0 || options.n_seqs > 1024 {
        return Err(refuse(
            "the number of sequences",
            options.n_seqs.to_string(),
            "in 1..=1024",
        ));
    }
    if options.n_ubatch == 0 || options.n_ubatch > 1 << 16 {
        return Err(refuse(
            "the micro-batch (-ub)",
            options.n_ubatch.to_string(),
            "in 1..=65536",
        ));
    }
    let names = || {
        CACHE_TYPES
            .iter()
            .map(|t| t.name())
            .collect::<Vec<_>>()
            .join(", ")
    };
    for (option, dtype) in [
        ("the key cache type (-ctk)", options.k_type),
        ("the value cache type (-ctv)", options.v_type),
    ] {
        if !CACHE_TYPES.contains(&dtype) {
            return Err(refuse(
                option,
                dtype.to_string(),
                &format!("one of {}", names()),
            ));
        }
    }
    // The widest activation of a step is one binding.
    let most = (max_binding_bytes / (4 * widest.max(1) as u64)).max(1);
    Ok(CacheConfig {
        n_ctx,
        n_seqs: options.n_seqs,
        n_ubatch: (options.n_ubatch as u64).min(most) as usize,
        k_type: options.k_type,
        v_type: options.v_type,
    })
}
