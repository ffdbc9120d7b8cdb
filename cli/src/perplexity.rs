//! `gemel perplexity`: how well a model predicts a text.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use gemel_engine::perplexity::perplexity as measure;

use crate::options::ModelArgs;
use crate::session::{self, Interrupt};

/// Arguments of `gemel perplexity`.
#[derive(Args, Debug)]
#[command(
    after_help = "The text is cut into chunks of the context size (-c), here 512 unless given; the second half of each is scored.\n\
    Ctrl-C ends the measurement and prints the value so far."
)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text, UTF-8
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Most chunks to measure [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

/// Runs the command.
pub(crate) fn perplexity(args: &PerplexityArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("reading {}", args.file.display()))?;
    let n_chunk = args.model.ctx_size.unwrap_or(512);
    if n_chunk < 4 {
        bail!("a chunk must have at least 4 tokens, but the context size (-c) is {n_chunk}");
    }
    let model = ModelArgs {
        ctx_size: Some(n_chunk),
        ..args.model.clone()
    };
    let file = model.open_file()?;
    let interrupt = Interrupt::install()?;
    let mut loaded = session::open(&model, &file)?;
    let mut ids = loaded.tokenizer.encode(&text, true, false);
    if let Some(chunks) = args.chunks {
        ids.truncate(chunks.max(1) * n_chunk);
    }
    let bos = loaded
        .tokenizer
        .bos()
        .filter(|_| loaded.tokenizer.add_bos());
    let bar = session::count_bar("chunks");
    let mut stdout = std::io::stdout().lock();
    let mut write_error = None;
    interrupt.begin();
    let result = measure(&mut loaded.context, &ids, n_chunk, bos, &mut |running| {
        bar.set_length(running.n_chunks as u64);
        bar.set_position(running.chunks as u64);
        let line = format!("[{}] {:.4}", running.chunks, running.perplexity);
        if let Err(error) = bar.suspend(|| writeln!(stdout, "{line}")) {
            write_error = Some(error);
        }
        write_error.is_none() && !interrupt.asked()
    });
    interrupt.end();
    bar.finish_and_clear();
    if let Some(error) = write_error {
        return Err(error.into());
    }
    let result = result?;
    writeln!(
        stdout,
        "perplexity {:.4} +/- {:.4} ({} tokens scored in {} of {} chunks of {n_chunk})",
        result.perplexity, result.std_error, result.n_scored, result.chunks, result.n_chunks
    )?;
    Ok(())
}
