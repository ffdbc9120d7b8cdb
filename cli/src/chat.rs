//! `gemel chat`: a conversation, turn by turn.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use gemel_engine::chat::{ChatTemplate, Message, RenderOptions, strip_bos};
use gemel_engine::generate::{Event, GenerateOptions, StopReason, generate};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::load::Loaded;

use crate::options::limit;
use crate::options::{ModelArgs, SamplingArgs};
use crate::session::{self, Interrupt};

/// Arguments of `gemel chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// System message (-sys)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Chat template to use instead of the model's: a built-in name (chatml, gemma, llama3) or a file
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Most new tokens of an answer; -1 is no limit [default: until the model ends its turn]
    #[arg(short, long, allow_negative_numbers = true, value_name = "N")]
    n_predict: Option<i64>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

const HELP: &str = "/history  show the conversation\n/undo     forget the last question and answer\n\
                    /reset    forget everything\n/exit     leave (also Ctrl-D)\n\
                    Ctrl-C stops an answer; what was said so far is kept.";

/// The conversation and what of it is cached.
struct Conversation {
    system: Vec<Message>,
    messages: Vec<Message>,
    seq: SeqId,
    /// Text up to the end of the last answer, as the template writes it, and the ids that the model read and drew for it.
    said: (String, Vec<u32>),
    /// How many of those ids are cached.
    n_cached: usize,
}

impl Conversation {
    /// The whole conversation with the assistant's turn opened, as text and as ids.
    ///
    /// What was said keeps the ids it was said with: the tokenizer may cut the same text in another way than the model
    /// did, and what is cached would then be of no use.
    fn render(&self, loaded: &Loaded, template: &ChatTemplate) -> Result<(String, Vec<u32>)> {
        let tokenizer = &loaded.tokenizer;
        let all: Vec<Message> = self.system.iter().chain(&self.messages).cloned().collect();
        let text = template.render(&all, &RenderOptions::default())?;
        let bos = tokenizer
            .bos()
            .and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default();
        if let Some(new) = text.strip_prefix(&self.said.0) {
            let ids = tokenizer.encode(new, false, true);
            // Text that begins with a marker is cut the same way with and without what comes before.
            if ids.first().is_some_and(|&id| tokenizer.is_control(id)) {
                return Ok((text, [&self.said.1[..], &ids].concat()));
            }
        }
        let whole = if tokenizer.add_bos() {
            strip_bos(&text, bos)
        } else {
            &text
        };
        let ids = tokenizer.encode(whole, true, true);
        Ok((text, ids))
    }

    /// Keeps the cached prefix that `ids` shares and returns the rest, at least one token.
    fn rest<'a>(&mut self, loaded: &mut Loaded, ids: &'a [u32]) -> Result<&'a [u32]> {
        let cached = &self.said.1[..self.n_cached];
        let shared = cached.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let shared = shared.min(ids.len().saturating_sub(1));
        if loaded.context.truncate(self.seq, shared).is_err() {
            // A sliding window that is gone cannot be restored: start over.
            loaded.context.remove(self.seq)?;
            self.seq = loaded.context.create()?;
            self.n_cached = 0;
            return Ok(ids);
        }
        self.n_cached = shared;
        Ok(&ids[shared..])
    }
}

/// Runs the command.
pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let file = args.model.open_file()?;
    let params = args.sampling.params(file.metadata())?;
    let wanted = args.chat_template.as_deref();
    session::check_template(file.metadata(), wanted, Some("a conversation"))?;
    let interrupt = Interrupt::install()?;
    let mut loaded = session::open(&args.model, &file)?;
    let template = session::chat_template(&loaded, wanted)?
        .context("this model has no chat template; name one with --chat-template")?;
    let new_sampler = session::sampler(&loaded, &args.sampling, params, args.model.verbose)?;
    let options = GenerateOptions {
        max_tokens: limit(args.n_predict),
        ..GenerateOptions::default()
    };
    let mut talk = Conversation {
        system: args
            .system
            .iter()
            .map(|text| Message::new("system", text))
            .collect(),
        messages: Vec::new(),
        seq: loaded.context.create()?,
        said: (String::new(), Vec::new()),
        n_cached: 0,
    };
    let interactive = std::io::stdin().is_terminal();
    let mut lines = std::io::stdin().lock().lines();
    let mut stdout = std::io::stdout().lock();
    if interactive {
        note!("{HELP}\n");
    }
    for turn in 0.. {
        if interactive {
            write!(stdout, "> ")?;
            stdout.flush()?;
        }
        let Some(line) = lines.next() else { break };
        let line = line.context("reading standard input")?;
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => break,
            "/help" => {
                note!("{HELP}");
                continue;
            }
            "/reset" => {
                talk.messages.clear();
                continue;
            }
            "/undo" => {
                talk.messages
                    .truncate(talk.messages.len().saturating_sub(2));
                continue;
            }
            "/history" => {
                for message in talk.system.iter().chain(&talk.messages) {
                    writeln!(
                        stdout,
                        "[{}] {}",
                        message.role,
                        message.content.as_str().unwrap_or_default()
                    )?;
                }
                continue;
            }
            command if command.starts_with('/') => {
                note!("unknown command {command}\n{HELP}");
                continue;
            }
            text => talk.messages.push(Message::new("user", text)),
        }
        let (mut said, mut ids) = talk.render(&loaded, &template)?;
        let rest = talk.rest(&mut loaded, &ids)?;
        // The penalties look at the conversation as it is now, which /undo and /reset may have cut; the turn's number
        // keeps the draws apart.
        let mut sampler = new_sampler.clone().with_sequence(turn);
        sampler.prime(&ids[..ids.len() - rest.len()]);
        let bar = session::count_bar("reading the prompt");
        interrupt.begin();
        let result = generate(
            &mut loaded.context,
            &loaded.tokenizer,
            talk.seq,
            rest,
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
                        if written.is_err() {
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
        let generated = match result {
            Ok(generated) => generated,
            Err(error) => {
                // The question is taken back, so that a shorter one can follow.
                talk.messages.pop();
                if !interactive {
                    bail!(error);
                }
                note!("error: {error}; /undo and /reset make room");
                continue;
            }
        };
        writeln!(stdout)?;
        session::closing_line(&generated, &**loaded.context.device());
        said.push_str(&generated.text);
        ids.extend(&generated.ids);
        talk.said = (said, ids);
        talk.n_cached = loaded.context.cache().len(talk.seq)?.min(talk.said.1.len());
        if generated.ids.is_empty() && generated.reason == StopReason::Cancelled {
            // Stopped before a word was said: the question was not answered and does not count.
            talk.messages.pop();
            continue;
        }
        talk.messages
            .push(Message::new("assistant", &generated.text));
    }
    Ok(())
}
