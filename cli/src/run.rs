//! `gemel run`: answers one prompt.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use gemel_engine::chat::{Message, RenderOptions, strip_bos};
use gemel_engine::generate::{Event, GenerateOptions, generate};
use gemel_engine::load::Loaded;

use crate::options::limit;
use crate::options::{ModelArgs, SamplingArgs};
use crate::session::{self, Interrupt};

/// Arguments of `gemel run`.
#[derive(Args, Debug)]
#[command(
    after_help = "The answer goes to standard output, everything else to standard error.\n\
    Ctrl-C ends the answer and keeps what was said (exit code 0); a second one ends the program (exit code 130)."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The prompt; without -p and -f it is read from standard input
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file; its last line break is left out, as with standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Most new tokens; -1 is no limit [default: until the model ends its turn or the context is full]
    #[arg(short, long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) n_predict: Option<i64>,
    /// System message for the chat template (-sys)
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "raw"
    )]
    pub(crate) system: Option<String>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long, conflicts_with = "chat_template")]
    pub(crate) raw: bool,
    /// Chat template to use instead of the model's: a built-in name (chatml, gemma, llama3) or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) chat_template: Option<String>,
    /// Text that ends the answer; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Go on after tokens that end a turn
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

fn read_prompt(args: &RunArgs) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if let Some(path) = &args.file {
        let bytes = std::fs::read(path)
            .with_context(|| format!("reading the prompt from {}", path.display()))?;
        return String::from_utf8(bytes)
            .with_context(|| {
                format!(
                    "the prompt in {} is not UTF-8 text; convert it",
                    path.display()
                )
            })
            .map(without_last_break);
    }
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        bail!("no prompt: give -p TEXT or -f FILE, pipe it in, or use `gemel chat`");
    }
    let mut prompt = String::new();
    stdin
        .read_to_string(&mut prompt)
        .context("reading the prompt from standard input")?;
    Ok(without_last_break(prompt))
}

/// Editors and `echo` end a text with a line break that is no part of the question.
fn without_last_break(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// The prompt as token ids: through the chat template where there is one.
fn prompt_ids(loaded: &Loaded, args: &RunArgs, prompt: &str) -> Result<Vec<u32>> {
    let tokenizer = &loaded.tokenizer;
    let template = if args.raw {
        None
    } else {
        session::chat_template(loaded, args.chat_template.as_deref())?
    };
    let Some(template) = template else {
        return Ok(tokenizer.encode(prompt, true, true));
    };
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(Message::new("system", system));
    }
    messages.push(Message::new("user", prompt));
    let text = template.render(&messages, &RenderOptions::default())?;
    let bos = tokenizer
        .bos()
        .and_then(|id| tokenizer.token_text(id))
        .unwrap_or_default();
    let text = if tokenizer.add_bos() {
        strip_bos(&text, bos)
    } else {
        &text
    };
    Ok(tokenizer.encode(text, true, true))
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let prompt = read_prompt(args)?;
    if prompt.trim().is_empty() && !args.raw {
        bail!("the prompt is empty; give some text with -p TEXT, -f FILE or on standard input");
    }
    // What needs no device is checked before one is opened.
    let file = args.model.open_file()?;
    let params = args.sampling.params(file.metadata())?;
    let needed_by = args.system.as_ref().map(|_| "--system");
    session::check_template(file.metadata(), args.chat_template.as_deref(), needed_by)?;
    let interrupt = Interrupt::install()?;
    let mut loaded = session::open(&args.model, &file)?;
    let ids = prompt_ids(&loaded, args, &prompt)?;
    let mut sampler = session::sampler(&loaded, &args.sampling, params, args.model.verbose)?;
    let seq = loaded.context.create()?;
    let options = GenerateOptions {
        max_tokens: limit(args.n_predict),
        stop: args.stop.clone(),
        ignore_eog: args.ignore_eos,
    };
    let bar = session::count_bar("reading the prompt");
    let mut stdout = std::io::stdout().lock();
    let mut write_error = None;
    interrupt.begin();
    let generated = generate(
        &mut loaded.context,
        &loaded.tokenizer,
        seq,
        &ids,
        &mut sampler,
        &options,
        &mut |event| {
            match event {
                Event::Prefill { done, total } if done < total => {
                    bar.set_length(total as u64);
                    bar.set_position(done as u64);
                }
                Event::Prefill { .. } => {
                    bar.finish_and_clear();
                    session::answering(true);
                }
                Event::Text(text) => {
                    let written = stdout
                        .write_all(text.as_bytes())
                        .and_then(|()| stdout.flush());
                    if let Err(error) = written {
                        write_error = Some(error);
                        return false;
                    }
                }
            }
            !interrupt.asked()
        },
    );
    interrupt.end();
    session::answering(false);
    bar.finish_and_clear();
    let generated = generated?;
    if let Some(error) = write_error {
        return Err(error.into());
    }
    writeln!(stdout)?;
    session::closing_line(&generated, &**loaded.context.device());
    Ok(())
}
