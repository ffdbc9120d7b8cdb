//! `gemel perplexity`: how well a model predicts a text.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use clap::Args;
use gemel_engine::perplexity::perplexity as measure;

use crate::options::ModelArgs;
use crate::session;

/// Arguments of `gemel perplexity`. The context size (-c) is the size of a chunk, 512 unless given.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text, UTF-8
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Most chunks to measure
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

/// Runs the command.
pub(crate) fn perplexity(args: &PerplexityArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("reading {}", args.file.display()))?;
    let n_chunk = args.model.ctx_size.unwrap_or(512);
    let interrupted = session::interrupt_flag()?;
    let model = ModelArgs {
        ctx_size: Some(n_chunk),
        ..args.model.clone()
    };
    let mut loaded = session::open(&model, 1)?;
    let mut ids = loaded.tokenizer.encode(&text, true, false);
    if let Some(chunks) = args.chunks {
        ids.truncate(chunks.max(1) * n_chunk);
    }
    let bos = loaded
        .tokenizer
        .bos()
        .filter(|_| loaded.tokenizer.add_bos());
    let bar = session::count_bar("chunks");
    let result = measure(&mut loaded.context, &ids, n_chunk, bos, &mut |running| {
        bar.set_length(running.n_chunks as u64);
        bar.set_position(running.chunks as u64);
        let line = format!("[{}] {:.4}", running.chunks, running.perplexity);
        bar.suspend(|| println!("{line}"));
        !interrupted.load(Ordering::SeqCst)
    })?;
    bar.finish_and_clear();
    println!(
        "perplexity {:.4} +/- {:.4} ({} tokens scored in {} of {} chunks of {n_chunk})",
        result.perplexity, result.std_error, result.n_scored, result.chunks, result.n_chunks
    );
    Ok(())
}
