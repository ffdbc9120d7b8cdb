//! `gemel inspect`: what is in a file and what the engine will do with it.

mod memory;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gemel_core::DType;
use gemel_core::device::reference_caps;
use gemel_core::op::{Caps, DeviceClass};
use gemel_core::ops::matmul_q8;
use gemel_engine::gguf::{GgufFile, Metadata, Value};
use gemel_engine::models;
use gemel_engine::synthetic::Spec;
use gemel_engine::tokenizer::Tokenizer;
use gemel_engine::weights::Requests;
use serde_json::json;

use crate::options::{name, open_file};

/// Arguments of `gemel inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// The file; of a sharded model any shard
    #[arg(required_unless_present = "synthetic")]
    file: Option<PathBuf>,
    /// Instead of a file: the shape of a published model with random weights, e.g. `llama:8b:q4_k`; `gemel synth --list`
    #[arg(long, conflicts_with = "file", value_name = "ARCH:SIZE:TYPE[:SEED]")]
    synthetic: Option<Spec>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print whole values instead of their beginnings
    #[arg(long)]
    full: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Replace a metadata value, e.g. tokenizer.ggml.pre=str:smollm; may be repeated
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    override_kv: Vec<String>,
}

/// Bytes and number of tensors by type.
fn by_type(file: &GgufFile) -> BTreeMap<DType, (usize, usize)> {
    let mut sums = BTreeMap::new();
    for tensor in file.gguf().tensors() {
        let (n, bytes) = sums.entry(tensor.dtype).or_insert((0, 0));
        *n += 1;
        *bytes += tensor.n_bytes;
    }
    sums
}

/// A value in at most `width` characters.
fn show(value: &Value, full: bool) -> String {
    let text = match value {
        Value::Array(array) => format!("{} of {}: {array:?}", array.len(), array.type_name()),
        Value::String(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    };
    if full || text.chars().count() <= 100 {
        return text;
    }
    text.chars().take(97).chain("...".chars()).collect()
}

/// What the engine will do with the file, line by line.
fn verdict(file: &GgufFile, metadata: &Metadata) -> Vec<String> {
    let mut lines = Vec::new();
    let arch = match metadata.str("general.architecture") {
        Ok(arch) => arch,
        Err(error) => return vec![format!("model: not usable: {error}")],
    };
    let mut requests = Requests::new(file, arch);
    match models::load(metadata, &mut requests) {
        Err(error) => lines.push(format!("model: not usable: {error}")),
        Ok(model) => {
            let info = model.info();
            let caps = Caps {
                class: DeviceClass::Discrete,
                ..reference_caps()
            };
            lines.push(format!(
                "model: {arch}, {} layers, width {}, vocabulary {}, trained for {} tokens",
                info.n_layers, info.d_model, info.n_vocab, info.n_ctx_train
            ));
            if let Some((n_experts, n_used)) = info.experts {
                lines.push(format!(
                    "experts: {n_experts} a layer, of which a token uses {n_used}"
                ));
            }
            lines.push(format!(
                "device memory for weights: {:.1} MiB",
                requests.n_bytes(&caps) as f64 / 1_048_576.0
            ));
            if let Some(table) = model.ngrams() {
                lines.push(format!(
                    "n-gram table: {} rows of {} channels, {:.1} MiB of these, of which a token reads {} rows; it may stay in the file (--ngram-table file)",
                    table.rows.n_rows,
                    table.rows.width,
                    table.rows.n_bytes as f64 / 1_048_576.0,
                    table.hashes.heads.len()
                ));
            }
            let (mut integer, mut decoded) = (
                BTreeMap::<DType, usize>::new(),
                BTreeMap::<DType, usize>::new(),
            );
            for (_, dtype, shape) in requests.matrices() {
                // Stacks of experts are multiplied as they are decoded.
                *if shape.len() == 2 && matmul_q8::TYPES.contains(&dtype) {
                    &mut integer
                } else {
                    &mut decoded
                }
                .entry(dtype)
                .or_default() += 1;
            }
            let list = |counts: &BTreeMap<DType, usize>| {
                let parts: Vec<_> = counts
                    .iter()
                    .map(|(dtype, n)| format!("{dtype} x {n}"))
                    .collect();
                if parts.is_empty() {
                    "none".to_owned()
                } else {
                    parts.join(", ")
                }
            };
            lines.push(format!(
                "weights that can multiply 8-bit activations (--fast): {}",
                list(&integer)
            ));
            lines.push(format!(
                "weights that always multiply f32 activations: {}",
                list(&decoded)
            ));
            lines.extend(memory::lines(&*model));
            for what in model.found() {
                lines.push(format!("also in the file: {what}"));
            }
        }
    }
    let unused = {
        let used: Vec<&str> = requests.matrices().map(|(name, ..)| name).collect();
        file.gguf()
            .tensors()
            .iter()
            .filter(|tensor| tensor.shape.len() > 1 && !used.contains(&tensor.name.as_str()))
            .count()
    };
    if unused > 0 {
        lines.push(format!("{unused} matrices of the file are not used"));
    }
    match Tokenizer::from_metadata(metadata) {
        Err(error) => lines.push(format!("tokenizer: not usable: {error}")),
        Ok(tokenizer) => lines.push(format!(
            "tokenizer: {} ({}), {} tokens",
            metadata
                .opt_str("tokenizer.ggml.model")
                .ok()
                .flatten()
                .unwrap_or("?"),
            metadata
                .opt_str("tokenizer.ggml.pre")
                .ok()
                .flatten()
                .unwrap_or("default"),
            tokenizer.n_vocab()
        )),
    }
    let template = metadata.contains("tokenizer.chat_template");
    lines.push(format!(
        "chat template: {}",
        if template {
            "yes"
        } else {
            "none (name one with --chat-template)"
        }
    ));
    lines
}

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let (path, synthetic) = (args.file.as_deref(), args.synthetic.as_ref());
    let file = open_file(path, synthetic, &args.override_kv)?;
    let metadata = file.metadata();
    let types = by_type(&file);
    let mut out = std::io::stdout().lock();
    if args.json {
        let tensors: Vec<_> = file
            .gguf()
            .tensors()
            .iter()
            .map(|t| json!({"name": t.name, "type": t.dtype.name(), "shape": t.shape, "bytes": t.n_bytes}))
            .collect();
        let values: serde_json::Map<_, _> = metadata
            .iter()
            .map(|(key, value)| (key.to_owned(), json!(show(value, args.full))))
            .collect();
        let report = json!({
            "bytes": file.n_bytes(),
            "version": file.gguf().version,
            "metadata": values,
            "tensors": tensors,
            "verdict": verdict(&file, metadata),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: GGUF v{}, {:.1} MiB",
        name(path, synthetic),
        file.gguf().version,
        file.n_bytes() as f64 / 1_048_576.0
    )?;
    writeln!(out, "\nmetadata ({})", metadata.len())?;
    for (key, value) in metadata.iter() {
        writeln!(out, "  {key:<44} {}", show(value, args.full))?;
    }
    writeln!(out, "\ntensors ({})", file.gguf().tensors().len())?;
    for (dtype, (n, bytes)) in &types {
        writeln!(
            out,
            "  {:<8} {n:>5} tensors {:>10.1} MiB  {:.4} bits per weight",
            dtype.name(),
            *bytes as f64 / 1_048_576.0,
            dtype.bits_per_elem()
        )?;
    }
    if args.tensors {
        for tensor in file.gguf().tensors() {
            writeln!(
                out,
                "  {:<40} {:<8} {:?} {} bytes",
                tensor.name,
                tensor.dtype.name(),
                tensor.shape,
                tensor.n_bytes
            )?;
        }
    }
    writeln!(out, "\nengine")?;
    for line in verdict(&file, metadata) {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}
