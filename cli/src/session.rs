//! A model opened for a command: device, progress bars, sequence, sampler, and the closing line.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gemel_core::Device;
use gemel_core::op::DeviceClass;
use gemel_engine::chat::{ChatTemplate, template_source};
use gemel_engine::generate::{Generated, StopReason};
use gemel_engine::gguf::{GgufFile, Metadata};
use gemel_engine::load::{LoadError, LoadOptions, Loaded, load};
use gemel_engine::sampler::{DEFAULT_DRY_BREAKERS, DryBreakers, Sampler, SamplerParams};
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};

use crate::device;
use crate::options::{ModelArgs, SamplingArgs};

/// All bars, so that lines of text and other bars do not overwrite one another.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Whether an answer is being written: a bar would then be drawn over its last line.
static ANSWERING: AtomicBool = AtomicBool::new(false);

/// Prints a line on standard error; see `note!`. That nobody reads it is no reason to stop.
pub(crate) fn note(text: &str) {
    BARS.suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
}

/// Says that text of an answer follows, or no longer does.
pub(crate) fn answering(is: bool) {
    ANSWERING.store(is, Ordering::Relaxed);
}

/// Whether text of an answer is being written.
pub(crate) fn is_answering() -> bool {
    ANSWERING.load(Ordering::Relaxed)
}

/// Opens the device and loads the model, with a progress bar.
pub(crate) fn open(args: &ModelArgs, file: &GgufFile) -> Result<Loaded> {
    open_as(args, file, &args.load_options())
}

/// [`open`] with other options than those of the flags.
pub(crate) fn open_as(args: &ModelArgs, file: &GgufFile, options: &LoadOptions) -> Result<Loaded> {
    let device = device::open(args)?;
    let name = args.name();
    let bar = bytes_bar(&format!("loading {name}"));
    let loaded = load(file, device, options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
    .map_err(|error| match (error, args.memory) {
        (error @ LoadError::TooLarge { .. }, Some(mib)) => {
            anyhow::Error::new(error).context(format!("--memory allows {mib} MiB"))
        }
        (error, _) => error.into(),
    })
    .with_context(|| format!("loading {name}"));
    bar.finish_and_clear();
    let loaded = loaded?;
    let n_ubatch = loaded.context.cache().config().n_ubatch;
    if n_ubatch < options.n_ubatch {
        note!(
            "micro-batch of {n_ubatch} instead of {}: what a binding of this device holds",
            options.n_ubatch
        );
    }
    for what in &loaded.found {
        note!("the file also has {what}");
    }
    if let Some(place) = &loaded.ngram_table {
        note!("{place}");
    }
    if args.verbose {
        report(&loaded);
    }
    Ok(loaded)
}

fn report(loaded: &Loaded) {
    let info = loaded.context.info();
    let config = loaded.context.cache().config();
    let device = loaded.context.device();
    let memory = match device.caps().class {
        DeviceClass::Reference => "no limit of memory".to_owned(),
        _ => format!("{} MiB of memory", device.memory().total >> 20),
    };
    note!("device: {}, {memory}", device.description());
    note!(
        "model: {}, {} layers, width {}, vocabulary {}, {:.1} M parameters, {} MiB of weights",
        info.arch,
        info.n_layers,
        info.d_model,
        info.n_vocab,
        loaded.n_params as f64 / 1e6,
        loaded.weight_bytes >> 20
    );
    note!(
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
    BARS.add(
        ProgressBar::new(0)
            .with_style(style)
            .with_message(what.to_owned())
            .with_finish(ProgressFinish::AndClear),
    )
}

/// What Ctrl-C does: the first one ends the work in progress cleanly, a second one, or one where there is nothing to
/// end cleanly, the program.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    asked: AtomicBool,
    busy: AtomicBool,
}

impl Interrupt {
    /// Takes over Ctrl-C; until `begin` it ends the program.
    pub(crate) fn install() -> Result<Arc<Self>> {
        let interrupt = Arc::new(Self::default());
        let handler = interrupt.clone();
        ctrlc::set_handler(move || {
            if !handler.busy.load(Ordering::SeqCst) || handler.asked.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })
        .context("installing the Ctrl-C handler")?;
        Ok(interrupt)
    }

    /// Work begins that looks at `asked`.
    pub(crate) fn begin(&self) {
        self.asked.store(false, Ordering::SeqCst);
        self.busy.store(true, Ordering::SeqCst);
    }

    /// That work is over.
    pub(crate) fn end(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }

    /// Whether the work should end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A sampler with `params`, which come from `SamplingArgs::params`.
pub(crate) fn sampler(
    loaded: &Loaded,
    args: &SamplingArgs,
    params: SamplerParams,
    verbose: bool,
) -> Result<Sampler> {
    let seed = args.seed();
    if verbose {
        note!("sampling: seed {seed}, {params:?}");
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
    match own_template(&loaded.metadata) {
        Some(source) => Ok(Some(
            ChatTemplate::new(&source, &bos, &eos).context("the model's chat template")?,
        )),
        None => Ok(None),
    }
}

/// The source of the model's template.
fn own_template(metadata: &Metadata) -> Option<String> {
    let lookup = |key: &str| metadata.opt_str(key).ok().flatten().map(str::to_owned);
    template_source(lookup, None).ok()
}

/// Fails before anything is loaded where a template is needed and there will be none.
pub(crate) fn check_template(
    metadata: &Metadata,
    wanted: Option<&str>,
    needed_by: Option<&str>,
) -> Result<()> {
    if let Some(wanted) = wanted {
        if !std::path::Path::new(wanted).is_file() {
            ChatTemplate::built_in(wanted, "", "")
                .context("--chat-template names no file either")?;
        }
    } else if let Some(what) = needed_by
        && own_template(metadata).is_none()
    {
        bail!(
            "{what} needs a chat template, and this model has none; name one with --chat-template (chatml, gemma, llama3 or a file)"
        );
    }
    Ok(())
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
            note!("stopped: the context of {n_ctx} tokens is full; raise it with -c");
        }
        StopReason::Cancelled => note!("stopped by request (Ctrl-C)"),
        StopReason::EndOfGeneration | StopReason::StopString(_) | StopReason::Length => {}
    }
    let memory = device.memory();
    note!(
        "prefill {} tokens, {:.1} tok/s | decode {} tokens, {:.1} tok/s | {} MiB on {}",
        generated.n_prompt,
        rate(generated.n_prompt, generated.prefill),
        generated.n_decoded,
        rate(generated.n_decoded, generated.decode),
        memory.used >> 20,
        device.description()
    );
}
