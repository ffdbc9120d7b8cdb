//! One sequence from prompt to text: prefill, then sample, decode, emit until something stops it.

use std::time::{Duration, Instant};

use crate::blocks::Head;
use crate::forward::{Context, StepError, StepOutput, StepToken};
use crate::kv_cache::SeqId;
use crate::sampler::{Sampled, Sampler, SamplerError, SoftmaxStats};
use crate::text::{StopStrings, TextStream};
use crate::tokenizer::Tokenizer;

/// Most candidates that the device selects; a chain that needs more gets all logits.
const MAX_CANDIDATES: usize = 1024;

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    EndOfGeneration,
    /// A stop string was produced.
    StopString(usize),
    /// The requested number of tokens was produced.
    Length,
    /// The context is full.
    ContextFull {
        /// Its size in tokens.
        n_ctx: usize,
    },
    /// The caller asked to stop.
    Cancelled,
}

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most new tokens; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    /// Go on after tokens that end a turn.
    pub ignore_eog: bool,
}

/// What happens while generating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Tokens of the prompt that are cached.
    Prefill {
        /// Done so far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// New text, whole characters only.
    Text(&'a str),
}

/// What was generated, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// New tokens, the one that ended the turn excluded.
    pub ids: Vec<u32>,
    /// Their text, up to the stop string if one was found.
    pub text: String,
    /// Why it ended.
    pub reason: StopReason,
    /// Tokens of the prompt that were read: all, unless the caller stopped before.
    pub n_prompt: usize,
    /// Time for the prompt.
    pub prefill: Duration,
    /// Steps after the prompt.
    pub n_decoded: usize,
    /// Time for them.
    pub decode: Duration,
}

/// Why a generation failed. Text emitted before stays emitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The sampler refused.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// Nothing to continue.
    #[error("the prompt has no tokens; give some text")]
    EmptyPrompt,
}

/// The cheapest head that suffices for a sampler.
pub fn head_for(sampler: &Sampler) -> Head {
    match sampler.candidate_count() {
        Some(1) => Head::Argmax,
        Some(k) if k <= MAX_CANDIDATES => Head::TopK(k.next_multiple_of(8)),
        _ => Head::Logits,
    }
}

/// Draws a token from what a step returned.
///
/// # Errors
/// Logits that are not finite; a chain that leaves no candidate.
pub fn draw(
    sampler: &mut Sampler,
    output: &StepOutput,
    n_vocab: usize,
) -> Result<Sampled, SamplerError> {
    match output {
        StepOutput::Logits(logits) => sampler.sample(logits),
        StepOutput::Argmax(id) => Ok(Sampled {
            id: *id,
            logprob: f32::NAN,
            prob: 1.0,
        }),
        StepOutput::TopK {
            ids,
            logits,
            max,
            sum,
        } => {
            let stats = SoftmaxStats {
                n_vocab,
                max: *max,
                sum: *sum,
            };
            sampler.sample_candidates(ids, logits, &stats)
        }
    }
}

/// Continues `seq` with `prompt` and generates. `on_event` returns whether to go on.
///
/// The prompt and all generated tokens but the last are cached afterwards.
///
/// # Errors
/// See [`GenerateError`]; a prompt that does not fit the context is refused as a whole.
pub fn generate(
    context: &mut Context,
    tokenizer: &Tokenizer,
    seq: SeqId,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<Generated, GenerateError> {
    if prompt.is_empty() {
        return Err(GenerateError::EmptyPrompt);
    }
    let n_vocab = context.info().n_vocab;
    let n_ctx = context.cache().config().n_ctx;
    let head = head_for(sampler);
    sampler.prime(prompt);

    let start = Instant::now();
    let total = prompt.len();
    let mut read = 0;
    let first = context.prefill(seq, prompt, head, &mut |done| {
        read = done;
        on_event(Event::Prefill { done, total })
    })?;
    let mut result = Generated {
        ids: Vec::new(),
        text: String::new(),
        reason: StopReason::Cancelled,
        n_prompt: total,
        prefill: start.elapsed(),
        n_decoded: 0,
        decode: Duration::ZERO,
    };
    let Some(mut output) = first else {
        result.n_prompt = read;
        return Ok(result);
    };
    on_event(Event::Prefill { done: total, total });

    let mut stream = TextStream::new();
    let mut stops = StopStrings::new(options.stop.clone());
    let start = Instant::now();
    result.reason = loop {
        if options
            .max_tokens
            .is_some_and(|max| result.ids.len() >= max)
        {
            break StopReason::Length;
        }
        let token = draw(sampler, &output, n_vocab)?;
        sampler.accept(token.id);
        if tokenizer.is_eog(token.id) && !options.ignore_eog {
            break StopReason::EndOfGeneration;
        }
        result.ids.push(token.id);
        let bytes = tokenizer.token_bytes(token.id).unwrap_or_default();
        let event = stops.push(stream.push(bytes));
        let go_on = emit(&mut result.text, &event.emit, on_event);
        if let Some(index) = event.stopped {
            break StopReason::StopString(index);
        }
        if !go_on {
            break StopReason::Cancelled;
        }
        if context.cache().len(seq).map_err(StepError::from)? >= n_ctx {
            break StopReason::ContextFull { n_ctx };
        }
        let step = [StepToken {
            seq,
            id: token.id,
            output: true,
        }];
        let mut outputs = context.step(&step, head)?;
        result.n_decoded += 1;
        match outputs.pop() {
            Some(next) => output = next,
            None => break StopReason::Cancelled,
        }
    };
    result.decode = start.elapsed();
    if !matches!(result.reason, StopReason::StopString(_)) {
        let tail = stops.push(stream.finish());
        emit(&mut result.text, &tail.emit, on_event);
        let held = stops.flush();
        emit(&mut result.text, &held, on_event);
    }
    Ok(result)
}

fn emit(text: &mut String, piece: &str, on_event: &mut dyn FnMut(Event<'_>) -> bool) -> bool {
    text.push_str(piece);
    // An empty event still asks whether to go on: a cancel must not wait for a whole character.
    on_event(Event::Text(piece))
}
