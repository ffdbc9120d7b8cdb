//! Flags that several commands share, and their translation into the engine's options.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use gemel_core::DType;
use gemel_core::dtype::CACHE_TYPES;
use gemel_engine::blocks::Precision;
use gemel_engine::gguf::{GgufFile, Metadata, Value};
use gemel_engine::load::{LoadOptions, TablePlacement};
use gemel_engine::sampler::{SamplerParams, Stage};
use gemel_engine::synthetic::Spec;

/// Short flags of more than one letter that people type from habit, and their long forms.
const SHORT_WORDS: &[(&str, &str)] = &[
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ngl", "--n-gpu-layers"),
    ("-sys", "--system"),
    ("-np", "--parallel"),
];

/// Replaces short flags of several letters by their long forms. Everything else stays: values of flags, which may look
/// like flags (`-p -ub`), and what follows `--`.
pub(crate) fn spell_out(
    args: impl IntoIterator<Item = OsString>,
    command: &clap::Command,
) -> Vec<OsString> {
    let mut is_value = false;
    let mut is_over = false;
    let mut subcommand = None;
    args.into_iter()
        .enumerate()
        .map(|(index, arg)| {
            let Some(text) = arg.to_str().filter(|_| !is_value && !is_over && index > 0) else {
                is_value = false;
                return arg;
            };
            if subcommand.is_none() {
                subcommand = command.find_subcommand(text);
            }
            is_over = text == "--";
            let known = SHORT_WORDS.iter().find(|(short, _)| text == *short);
            let word = known.map_or(text, |(_, long)| long);
            is_value = subcommand.is_some_and(|command| takes_value(command, word));
            known.map_or(arg, |(_, long)| OsString::from(long))
        })
        .collect()
}

/// Whether the word after this one is its value.
fn takes_value(command: &clap::Command, word: &str) -> bool {
    let mut short = word.strip_prefix('-').unwrap_or_default().chars();
    let short = short.next().filter(|_| short.next().is_none());
    command.get_arguments().any(|arg| {
        let long = arg.get_long().zip(word.strip_prefix("--"));
        arg.get_action().takes_values()
            && (long.is_some_and(|(name, word)| name == word)
                || short.is_some() && arg.get_short() == short)
    })
}

/// A number of things of which there must be one.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("must be a whole number, at least 1".to_owned()),
    }
}

/// A seed; -1 is a random one.
fn seed(text: &str) -> Result<u64, String> {
    match text {
        "-1" => Ok(random_seed()),
        _ => text
            .parse()
            .map_err(|_| "must be a whole number, or -1 for a random one".to_owned()),
    }
}

/// A number of tokens to look back; -1 is all.
fn look_back(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => text
            .parse()
            .map_err(|_| "must be a whole number, or -1 for all".to_owned()),
    }
}

/// The limit that a number of new tokens is: none where it is left out or negative.
pub(crate) fn limit(n: Option<i64>) -> Option<usize> {
    n.and_then(|n| usize::try_from(n).ok())
}

fn random_seed() -> u64 {
    // The standard library's hasher keys are random; a sampler needs no more than that.
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Which model, on which device, with which memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// The model, a GGUF file; of a sharded model any shard
    #[arg(
        short,
        long,
        required_unless_present = "synthetic",
        value_name = "FILE"
    )]
    pub(crate) model: Option<PathBuf>,
    /// Instead of a file: the shape of a published model with random weights, e.g. `llama:8b:q4_k`; `gemel synth --list`
    #[arg(long, conflicts_with = "model", value_name = "ARCH:SIZE:TYPE[:SEED]")]
    pub(crate) synthetic: Option<Spec>,
    /// Where to run: `wgpu`, `wgpu:1`, part of a name from `gemel devices`, `cuda`, `cuda:1`, or `reference`
    #[arg(long, default_value = "wgpu", value_name = "DEVICE")]
    pub(crate) device: String,
    /// Context size in tokens [default: the model's, at most 4096]
    #[arg(short, long = "ctx-size", value_parser = count, value_name = "N")]
    pub(crate) ctx_size: Option<usize>,
    /// Upper limit of --ubatch-size, known from other programs
    #[arg(short, long, default_value_t = 2048, value_parser = count, value_name = "N")]
    pub(crate) batch_size: usize,
    /// Tokens of a prompt that the device processes at a time (-ub)
    #[arg(long, default_value_t = 512, value_parser = count, value_name = "N")]
    pub(crate) ubatch_size: usize,
    /// Type of cached keys
    #[arg(long, help = "Type of cached keys (-ctk): f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0", default_value = "f16", value_parser = cache_type, value_name = "TYPE")]
    pub(crate) cache_type_k: DType,
    /// Type of cached values
    #[arg(long, help = "Type of cached values (-ctv): f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0", default_value = "f16", value_parser = cache_type, value_name = "TYPE")]
    pub(crate) cache_type_v: DType,
    /// Re-quantise activations to 8 bits in products with quantised weights, where the device is faster that way;
    /// log-probabilities move by up to 0.5
    #[arg(long)]
    pub(crate) fast: bool,
    /// Where a table of n-gram embeddings goes: to the `device`, or nowhere (`file`), so that only rows that are needed
    /// are read; `auto` is the device where there is room
    #[arg(long, default_value = "auto", value_parser = table_placement, value_name = "PLACE")]
    pub(crate) ngram_table: TablePlacement,
    /// Most device memory to use, in MiB [default: what the device has]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<u64>,
    /// Host threads; only the reference device uses more than one [default: one a core]
    #[arg(short, long, value_parser = count, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Replace a metadata value, e.g. tokenizer.ggml.pre=str:smollm; may be repeated
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    pub(crate) override_kv: Vec<String>,
    /// Accepted for compatibility: all layers always run on the device (-ngl)
    #[arg(long, hide = true, allow_negative_numbers = true)]
    pub(crate) n_gpu_layers: Option<i64>,
    /// Say more about what is loaded and how it runs
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

fn table_placement(name: &str) -> Result<TablePlacement, String> {
    match name {
        "auto" => Ok(TablePlacement::Auto),
        "device" => Ok(TablePlacement::Device),
        "file" => Ok(TablePlacement::File),
        _ => Err("known are auto, device, file".to_owned()),
    }
}

fn cache_type(name: &str) -> Result<DType, String> {
    DType::from_name(name)
        .filter(|dtype| CACHE_TYPES.contains(dtype))
        .ok_or_else(|| {
            let known = CACHE_TYPES
                .iter()
                .map(|dtype| dtype.name())
                .collect::<Vec<_>>();
            format!("known are {}", known.join(", "))
        })
}

impl ModelArgs {
    /// Opens the file, or makes the model up, and applies the overrides.
    pub(crate) fn open_file(&self) -> Result<GgufFile> {
        open_file(
            self.model.as_deref(),
            self.synthetic.as_ref(),
            &self.override_kv,
        )
    }

    /// What the model is called in messages: its path, or what it is made of.
    pub(crate) fn name(&self) -> String {
        name(self.model.as_deref(), self.synthetic.as_ref())
    }

    /// The engine's options.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            n_ctx: self.ctx_size,
            n_seqs: 1,
            n_ubatch: self.ubatch_size.min(self.batch_size),
            k_type: self.cache_type_k,
            v_type: self.cache_type_v,
            precision: if self.fast {
                Precision::Fast
            } else {
                Precision::Strict
            },
            ngram_table: self.ngram_table,
        }
    }
}

/// What a model is called in messages.
pub(crate) fn name(path: Option<&Path>, synthetic: Option<&Spec>) -> String {
    match (path, synthetic) {
        (_, Some(spec)) => format!("synthetic {spec}"),
        (Some(path), None) => path.display().to_string(),
        (None, None) => String::new(),
    }
}

/// Opens a model file, or makes a model up, and applies the overrides. The flags see to it that there is one of both.
pub(crate) fn open_file(
    path: Option<&Path>,
    synthetic: Option<&Spec>,
    overrides: &[String],
) -> Result<GgufFile> {
    let mut file = match (path, synthetic) {
        (_, Some(spec)) => spec.open()?,
        (Some(path), None) => GgufFile::open(path)?,
        (None, None) => bail!("name a model: a file (-m), or --synthetic ARCH:SIZE:TYPE"),
    };
    for spec in overrides {
        file.metadata_mut()
            .apply_override(spec)
            .context("--override-kv")?;
    }
    Ok(file)
}

/// How tokens are drawn.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Seed of the draws; the same seed gives the same text [default: random, printed with -v]
    #[arg(short, long, value_parser = seed, allow_negative_numbers = true, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Temperature; 0 always takes the most likely token [default: the model's, else 0.8]
    #[arg(long, allow_negative_numbers = true, value_name = "T")]
    pub(crate) temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: the model's, else 40]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Keep the most likely tokens that together reach this probability [default: the model's, else 0.95]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens below this share of the most likely one's probability [default: the model's, else 0.05]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Locally typical sampling; 1 is off [default: 1]
    #[arg(long = "typical", allow_negative_numbers = true, value_name = "P")]
    pub(crate) typical_p: Option<f32>,
    /// Penalty of tokens that occurred; 1 is off [default: the model's, else 1]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    pub(crate) repeat_penalty: Option<f32>,
    /// Tokens that the penalties look back; -1 is all [default: 64]
    #[arg(long, value_parser = look_back, allow_negative_numbers = true, value_name = "N")]
    pub(crate) repeat_last_n: Option<usize>,
    /// Penalty of tokens that occurred at all [default: 0]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    pub(crate) presence_penalty: Option<f32>,
    /// Penalty by number of occurrences [default: 0]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    pub(crate) frequency_penalty: Option<f32>,
    /// Strength of the DRY penalty of repeated sequences; 0 is off [default: 0]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    pub(crate) dry_multiplier: Option<f32>,
    /// Chance that the most likely tokens are left out [default: the model's, else 0]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,
    /// Order of the stages, e.g. `penalties;top_k;top_p;temperature` [default: the model's, else all]
    #[arg(long, value_name = "LIST")]
    pub(crate) samplers: Option<String>,
}

/// `Some` replaces a field.
fn set<T: Copy>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

impl SamplingArgs {
    /// The model's defaults with the user's values on top.
    pub(crate) fn params(&self, metadata: &Metadata) -> Result<SamplerParams> {
        let number = |key: &str| match metadata.get(key)? {
            Value::F32(v) => Some(f64::from(*v)),
            Value::F64(v) => Some(*v),
            _ => metadata.opt_u64(key).ok().flatten().map(|v| v as f64),
        };
        let text = |key: &str| metadata.opt_str(key).ok().flatten().map(str::to_owned);
        let mut params = SamplerParams::from_metadata(number, text)?;
        set(&mut params.temperature, self.temp);
        set(&mut params.top_k, self.top_k);
        set(&mut params.top_p, self.top_p);
        set(&mut params.min_p, self.min_p);
        set(&mut params.typical_p, self.typical_p);
        set(&mut params.repeat_penalty, self.repeat_penalty);
        set(&mut params.repeat_last_n, self.repeat_last_n);
        set(&mut params.presence_penalty, self.presence_penalty);
        set(&mut params.frequency_penalty, self.frequency_penalty);
        set(&mut params.dry_multiplier, self.dry_multiplier);
        set(&mut params.xtc_probability, self.xtc_probability);
        if let Some(list) = &self.samplers {
            params.stages = Stage::parse_list(list)?;
        }
        params.check()?;
        Ok(params)
    }

    /// The seed, random if none was given.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }
}
