//! A model opened for a command: device, progress bars, sequence, sampler, and the closing line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use gemel_core::Device;
use gemel_engine::chat::{ChatTemplate, template_source};
use gemel_engine::generate::{Generated, StopReason};
use gemel_engine::load::{Loaded, load};
use gemel_engine::sampler::{DEFAULT_DRY_BREAKERS, DryBreakers, Sampler};
use indicatif::{ProgressBar, ProgressStyle};

use crate::device;
use crate::options::{ModelArgs, SamplingArgs};

/// Opens the device and loads the model, with a progress bar.
pub(crate) fn open(args: &ModelArgs, n_seqs: usize) -> Result<Loaded> {
    let file = args.open_file()?;
    let device = device::open(args)?;
    let options = gemel_engine::load::LoadOptions {
        n_seqs,
        ..args.load_options()
    };
    let bar = bytes_bar(&format!("loading {}", args.model.display()));
    let loaded = load(&file, device, &options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
    .with_context(|| format!("loading {}", args.model.display()));
    bar.finish_and_clear();
    let loaded = loaded?;
    if args.verbose {
        report(&loaded);
    }
    Ok(loaded)
}

fn report(loaded: &Loaded) {
    let info = loaded.context.info();
    let config = loaded.context.cache().config();
    eprintln!(
        "model: {}, {} layers, width {}, vocabulary {}, {:.1} M parameters, {} MiB of weights",
        info.arch,
        info.n_layers,
        info.d_model,
        info.n_vocab,
        loaded.n_params as f64 / 1e6,
        loaded.weight_bytes >> 20
    );
    eprintln!(
        "cache: {} tokens x {} sequences, K {}, V {}, {:.1} MiB; micro-batch {}",
        config.n_ctx,
        config.n_seqs,
        config.k_type,
        config.v_type,
        loaded.cache_bytes as f64 / f64::from(1 << 20),
        config.n_ubatch
    );
}

/// A bar for bytes, hidden where standard error is no terminal.
pub(crate) fn bytes_bar(what: &str) -> ProgressBar {
    bar(what, "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}")
}

/// A bar for things that are counted.
pub(crate) fn count_bar(what: &str) -> ProgressBar {
    bar(what, "{msg} [{bar:30}] {pos}/{len} {eta}")
}

fn bar(what: &str, template: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0)
        .with_style(style)
        .with_message(what.to_owned())
}

/// A flag that Ctrl-C sets. A second Ctrl-C ends the program at once.
pub(crate) fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler_flag = flag.clone();
    ctrlc::set_handler(move || {
        if handler_flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
    .context("installing the Ctrl-C handler")?;
    Ok(flag)
}

/// A sampler with the model's defaults and the user's values.
pub(crate) fn sampler(loaded: &Loaded, args: &SamplingArgs, verbose: bool) -> Result<Sampler> {
    let params = args.params(&loaded.metadata)?;
    let seed = args.seed();
    if verbose {
        eprintln!("sampling: seed {seed}, {params:?}");
    }
    let needs_breakers = params.dry_multiplier != 0.0;
    let sampler = Sampler::new(params, seed)?;
    if !needs_breakers {
        return Ok(sampler);
    }
    let texts: Vec<&[u8]> = (0..loaded.tokenizer.n_vocab() as u32)
        .map(|id| loaded.tokenizer.token_bytes(id).unwrap_or_default())
        .collect();
    let tokenize = |text: &str| loaded.tokenizer.encode(text, false, false);
    Ok(sampler.with_dry_breakers(DryBreakers::compile(
        &DEFAULT_DRY_BREAKERS,
        &texts,
        tokenize,
    )))
}

/// The template of the model, or the one the user names: a built-in name or a file.
pub(crate) fn chat_template(loaded: &Loaded, wanted: Option<&str>) -> Result<Option<ChatTemplate>> {
    let tokenizer = &loaded.tokenizer;
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .to_owned()
    };
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    if let Some(wanted) = wanted {
        let path = std::path::Path::new(wanted);
        if path.is_file() {
            let source =
                std::fs::read_to_string(path).with_context(|| format!("reading {wanted}"))?;
            return Ok(Some(ChatTemplate::new(&source, &bos, &eos)?));
        }
        return Ok(Some(ChatTemplate::built_in(wanted, &bos, &eos)?));
    }
    let lookup = |key: &str| {
        loaded
            .metadata
            .opt_str(key)
            .ok()
            .flatten()
            .map(str::to_owned)
    };
    match template_source(lookup, None) {
        Ok(source) => Ok(Some(ChatTemplate::new(&source, &bos, &eos)?)),
        Err(_) => Ok(None),
    }
}

/// Tokens per second, 0 for no time.
pub(crate) fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        n as f64 / time.as_secs_f64()
    }
}

/// One closing line on standard error: speeds, memory, device, and why it ended if that needs saying.
pub(crate) fn closing_line(generated: &Generated, device: &dyn Device) {
    match &generated.reason {
        StopReason::ContextFull { n_ctx } => {
            eprintln!("stopped: the context of {n_ctx} tokens is full; raise it with -c");
        }
        StopReason::Cancelled => eprintln!("stopped by request"),
        StopReason::EndOfGeneration | StopReason::StopString(_) | StopReason::Length => {}
    }
    let memory = device.memory();
    eprintln!(
        "prefill {} tokens, {:.1} tok/s | decode {} tokens, {:.1} tok/s | {} MiB on {}",
        generated.n_prompt,
        rate(generated.n_prompt, generated.prefill),
        generated.n_decoded,
        rate(generated.n_decoded, generated.decode),
        memory.used >> 20,
        device.description()
    );
}
