//! `gemel synth`: writes a synthetic model as a file.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use gemel_core::dtype::WEIGHT_TYPES;
use gemel_engine::gguf::write;
use gemel_engine::synthetic::{self, Spec};

use crate::session;

/// Arguments of `gemel synth`.
#[derive(Args, Debug)]
#[command(
    after_help = "The file has the weights that --synthetic gives `gemel run` and `gemel bench`, byte for byte. Its\n\
    text means nothing: it is for measuring one program against another on a model that nobody has to download."
)]
pub(crate) struct SynthArgs {
    /// The model, e.g. `llama:8b:q4_k`
    #[arg(required_unless_present = "list", value_name = "ARCH:SIZE:TYPE[:SEED]")]
    spec: Option<Spec>,
    /// The file to write
    #[arg(short, long, required_unless_present = "list", value_name = "FILE")]
    output: Option<PathBuf>,
    /// List architectures, sizes and types
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub(crate) fn synth(args: &SynthArgs) -> Result<()> {
    let (Some(spec), Some(path), false) = (&args.spec, &args.output, args.list) else {
        return list();
    };
    let file = spec.open()?;
    // Under another name until it is whole: half a model must not be mistaken for one.
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let bar = session::bytes_bar(&format!("writing {}", path.display()));
    let written = File::create(&part)
        .with_context(|| format!("creating {}", part.display()))
        .and_then(|out| {
            write::copy(&file, out, &mut |done, total| {
                bar.set_length(total);
                bar.set_position(done);
            })
            .with_context(|| format!("writing {}", part.display()))
        })
        .and_then(|_| rename(&part, path));
    bar.finish_and_clear();
    if written.is_err() {
        // The error is worth more than the remains.
        drop(fs::remove_file(&part));
    }
    written?;
    note!(
        "wrote {}: {} tensors, {:.1} MiB, {spec}",
        path.display(),
        file.gguf().tensors().len(),
        file.n_bytes() as f64 / 1_048_576.0
    );
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("renaming {} to {}", from.display(), to.display()))
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for (arch, size) in synthetic::models() {
        writeln!(out, "{arch}:{size}")?;
    }
    let types: Vec<&str> = WEIGHT_TYPES.iter().map(|dtype| dtype.name()).collect();
    writeln!(out, "types: {}", types.join(" "))?;
    Ok(())
}
