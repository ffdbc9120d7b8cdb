//! Perplexity of a text under a model, in consecutive chunks.
//!
//! The ids are cut into whole chunks of `n_chunk` tokens; each is a sequence of its own. The second half of a chunk
//! is scored: positions `n_chunk / 2 .. n_chunk - 1` against the token that follows.
//!
//! # Source
//! The method of llama.cpp's `perplexity` tool without stride, so that figures can be compared.

use crate::blocks::Head;
use crate::forward::{Context, StepError, StepOutput, StepToken};

/// Running result after a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// Chunks done.
    pub chunks: usize,
    /// Chunks in all.
    pub n_chunks: usize,
    /// Tokens scored.
    pub n_scored: usize,
    /// exp(mean negative log-likelihood).
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub std_error: f64,
}

/// Why a perplexity could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// Fewer tokens than one chunk.
    #[error(
        "the text has {found} tokens, but one chunk needs {needed}; give a longer text or a smaller chunk (-c)"
    )]
    TooShort {
        /// Tokens of the text.
        found: usize,
        /// Tokens of a chunk.
        needed: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Scores `ids`. `bos` replaces the first token of each chunk where the model wants one.
/// `on_chunk` returns whether to go on; the result covers the chunks done.
///
/// # Errors
/// Too few tokens; a failed step.
pub fn perplexity(
    context: &mut Context,
    ids: &[u32],
    n_chunk: usize,
    bos: Option<u32>,
    on_chunk: &mut dyn FnMut(&Running) -> bool,
) -> Result<Running, PerplexityError> {
    let n_chunks = ids.len() / n_chunk.max(1);
    if n_chunks == 0 || n_chunk < 4 {
        return Err(PerplexityError::TooShort {
            found: ids.len(),
            needed: n_chunk.max(4),
        });
    }
    // Logits of all scored rows of a step are one binding and one read-back.
    let n_vocab = context.info().n_vocab;
    let caps = context.device().caps();
    let row_bytes = 4 * n_vocab as u64;
    let most_rows = (caps.max_binding_bytes.min(64 << 20) / row_bytes).max(1) as usize;
    let n_step = context.cache().config().n_ubatch;
    let first = n_chunk / 2;

    let (mut sum, mut sum_squares, mut n_scored) = (0.0, 0.0, 0usize);
    let mut running = Running {
        chunks: 0,
        n_chunks,
        n_scored: 0,
        perplexity: f64::NAN,
        std_error: f64::NAN,
    };
    for chunk in ids.chunks_exact(n_chunk) {
        let seq = context.create().map_err(StepError::from)?;
        let mut done = 0;
        while done < n_chunk {
            // Unscored rows take the whole micro-batch, scored ones as many as fit.
            let n = if done < first {
                n_step.min(first - done)
            } else {
                n_step.min(most_rows).min(n_chunk - done)
            };
            let tokens: Vec<StepToken> = (done..done + n)
                .map(|i| StepToken {
                    seq,
                    id: if i == 0 {
                        bos.unwrap_or(chunk[0])
                    } else {
                        chunk[i]
                    },
                    output: i >= first && i + 1 < n_chunk,
                })
                .collect();
            let outputs = context.step(&tokens, Head::Logits)?;
            for (i, output) in (done.max(first)..).zip(&outputs) {
                if let StepOutput::Logits(logits) = output {
                    let nll = -log_prob(logits, chunk[i + 1] as usize);
                    sum += nll;
                    sum_squares += nll * nll;
                    n_scored += 1;
                }
            }
            done += n;
        }
        context.remove(seq).map_err(StepError::from)?;
        let n = n_scored as f64;
        let mean = sum / n;
        let perplexity = mean.exp();
        let variance = (sum_squares / n - mean * mean).max(0.0);
        running = Running {
            chunks: running.chunks + 1,
            n_scored,
            perplexity,
            std_error: perplexity * (variance / (n - 1.0).max(1.0)).sqrt(),
            ..running
        };
        if !on_chunk(&running) {
            break;
        }
    }
    Ok(running)
}

/// Natural logarithm of the softmax of `logits` at `id`.
pub fn log_prob(logits: &[f32], id: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - max).exp())
        .sum();
    f64::from(logits[id] - max) - sum.ln()
}
