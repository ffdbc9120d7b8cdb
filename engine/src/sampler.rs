//! From logits to a token: penalties, truncation, temperature and the draw.
//!
//! A [`Sampler`] belongs to one sequence. [`Sampler::sample`] looks at the logits of the next token
//! and draws one, [`Sampler::accept`] makes a token part of the history. Nothing but `accept`
//! advances the state, so a drawn token that is thrown away (a refused draft, a cancelled step)
//! leaves no trace, and [`Clone`] is a true copy.
//!
//! The stages run in the order of [`SamplerParams::stages`]:
//!
//! 1. logit bias, always first;
//! 2. penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature;
//! 3. the draw, or adaptive-p and then the draw; Mirostat replaces 2 and 3 by temperature and
//!    Mirostat.
//!
//! Equal logits are ordered by token id, lower first, and random numbers are a pure function of
//! (seed, sequence, position), so the same request gives the same text whatever shares its batch.
//!
//! Where a chain begins with top-k, a device needs to send back only its largest logits:
//! [`Sampler::candidate_count`] says how many and [`Sampler::sample_candidates`] draws from them,
//! with the same result as from all of them.
//!
//! ```
//! use gemel_engine::sampler::{Sampler, SamplerParams};
//!
//! # fn main() -> Result<(), gemel_engine::sampler::SamplerError> {
//! let mut sampler = Sampler::new(SamplerParams { top_k: 2, ..SamplerParams::default() }, 42)?;
//! sampler.prime(&[5, 6, 7]); // the prompt
//! let drawn = sampler.sample(&[0.5, 3.0, 2.5, -1.0])?;
//! assert!(drawn.id == 1 || drawn.id == 2);
//! sampler.accept(drawn.id);
//! # Ok(())
//! # }
//! ```

mod chain;
mod history;
mod params;
pub mod random;

pub use chain::Candidate;
pub use history::{DEFAULT_DRY_BREAKERS, DryBreakers};
pub use params::{Mirostat, SamplerParams, Stage};

use history::History;
use random::Stream;

/// Why a sampler could not be made or could not draw.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A parameter outside its range.
    #[error("sampling parameter {name} is {found}; it must be {expected}")]
    BadParameter {
        /// Name of the field of [`SamplerParams`].
        name: &'static str,
        /// The value given.
        found: String,
        /// The values allowed.
        expected: &'static str,
    },
    /// A stage name that does not exist.
    #[error("unknown sampling stage {found:?}; known are {known}")]
    UnknownStage {
        /// The name given.
        found: String,
        /// All names, separated by commas.
        known: String,
    },
    /// A logit that is NaN or +infinity: the model's output is not usable.
    #[error(
        "the logit of token {id} is {value}; the model's output is broken, so no token can be drawn \
         (try another device or cache type, and report the model)"
    )]
    BadLogit {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// Every token is banned: by bias, by a grammar, or by stages before the draw.
    #[error("no candidate token is left: all {n_logits} logits are -infinity")]
    NoCandidate {
        /// How many logits came in.
        n_logits: usize,
    },
    /// A biased token that the vocabulary does not have.
    #[error("logit bias names token {id}, but the vocabulary has {n_vocab} tokens")]
    BiasOutsideVocabulary {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// [`Sampler::sample_candidates`] got fewer logits than [`Sampler::candidate_count`] asks for,
    /// or lists of different lengths.
    #[error("{found} candidates were given where {expected} are needed")]
    WrongCandidateCount {
        /// Candidates needed.
        expected: usize,
        /// Candidates given.
        found: usize,
    },
}

/// A drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural logarithm of the model's own probability: the softmax over all logits as they came
    /// in, before bias, penalties and temperature.
    pub logprob: f32,
    /// Probability that this draw had, after all stages. 1 when temperature is 0.
    pub prob: f32,
}

/// Softmax statistics over a whole vocabulary, computed where the logits are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxStats {
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Largest logit.
    pub max: f32,
    /// `Σ e^{z - max}` over the vocabulary.
    pub sum: f32,
}

impl SoftmaxStats {
    /// The statistics of logits in host memory.
    ///
    /// # Errors
    /// [`SamplerError::BadLogit`] for NaN or +infinity, [`SamplerError::NoCandidate`] when nothing is
    /// above -infinity.
    pub fn of(logits: &[f32]) -> Result<Self, SamplerError> {
        let mut max = f32::NEG_INFINITY;
        for (id, &value) in (0_u32..).zip(logits) {
            if value.is_nan() || value == f32::INFINITY {
                return Err(SamplerError::BadLogit { id, value });
            }
            max = max.max(value);
        }
        if max == f32::NEG_INFINITY {
            return Err(SamplerError::NoCandidate {
                n_logits: logits.len(),
            });
        }
        let sum: f64 = logits.iter().map(|z| f64::from((z - max).exp())).sum();
        Ok(Self {
            n_vocab: logits.len(),
            max,
            sum: sum as f32,
        })
    }

    /// Natural logarithm of the probability of a token with this logit.
    pub fn logprob(&self, logit: f32) -> f32 {
        logit - self.max - self.sum.ln()
    }
}

/// What the last draw leaves behind for `accept`, should its token be accepted.
#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u32,
    /// Mirostat: `-log2 p` of the drawn token among those it was drawn from.
    surprise: f64,
    /// Adaptive-p: probability before the transformation.
    original_prob: f64,
}

/// Draws the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplerParams,
    breakers: DryBreakers,
    seed: u64,
    sequence: u32,
    /// Tokens accepted since the prompt: the counter of the random numbers.
    position: u64,
    history: History,
    /// Mirostat's μ.
    mu: f64,
    /// Adaptive-p's weighted sum and total.
    adaptive: (f64, f64),
    pending: Option<Pending>,
    /// Work space, kept between draws.
    work: Vec<Candidate>,
}

impl Sampler {
    /// A sampler with an empty history, for sequence 0, without DRY breakers.
    ///
    /// # Errors
    /// [`SamplerError::BadParameter`] with the name and the range of the first bad value.
    pub fn new(params: SamplerParams, seed: u64) -> Result<Self, SamplerError> {
        params.check()?;
        let decay = f64::from(params.adaptive_decay);
        let target = f64::from(params.adaptive_target.max(0.0));
        Ok(Self {
            history: History::new(&params),
            mu: 2.0 * f64::from(params.mirostat_tau),
            adaptive: (target / (1.0 - decay), 1.0 / (1.0 - decay)),
            breakers: DryBreakers::default(),
            seed,
            sequence: 0,
            position: 0,
            pending: None,
            work: Vec::new(),
            params,
        })
    }

    /// Sets the sequence number: completions of one request with one seed differ by it.
    #[must_use]
    pub fn with_sequence(mut self, sequence: u32) -> Self {
        self.sequence = sequence;
        self
    }

    /// Sets what ends DRY's search for repetitions; see [`DryBreakers::compile`].
    #[must_use]
    pub fn with_dry_breakers(mut self, breakers: DryBreakers) -> Self {
        self.breakers = breakers;
        self
    }

    /// The parameters.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The seed, as given.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many tokens have been accepted since the prompt.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Puts prompt tokens into the history of penalties and DRY. They do not advance the random
    /// numbers.
    pub fn prime(&mut self, prompt: &[u32]) {
        for &id in prompt {
            self.history.push(id);
        }
    }

    /// Makes a token part of the history and advances the random numbers by one.
    ///
    /// Mirostat and adaptive-p learn from it only if it is the token of the last draw.
    pub fn accept(&mut self, id: u32) {
        self.history.push(id);
        self.position += 1;
        if let Some(pending) = self.pending.take()
            && pending.id == id
        {
            let (tau, eta) = (self.params.mirostat_tau, self.params.mirostat_eta);
            self.mu -= f64::from(eta) * (pending.surprise - f64::from(tau));
            let decay = f64::from(self.params.adaptive_decay);
            let (weighted, total) = self.adaptive;
            self.adaptive = (
                pending.original_prob + decay * weighted,
                1.0 + decay * total,
            );
        }
    }

    /// Mirostat's current limit of surprise, in bits.
    pub fn mirostat_mu(&self) -> f64 {
        self.mu
    }

    /// How many of the largest logits suffice, or `None` when all are needed. It stays the same for
    /// the life of the sampler, so it may shape a plan.
    ///
    /// The stages before top-k (or before a greedy choice) must only ever lower logits, each of a
    /// known set of tokens: then a token outside the `k + |set|` largest cannot rise into the `k`
    /// largest. Penalties (repeat at least 1, the others at least 0), DRY and negative biases are of
    /// that kind. Ties are taken by lower id, so the list from the device must be, too.
    pub fn candidate_count(&self) -> Option<usize> {
        self.params.candidate_count()
    }

    /// True when [`candidate_count`](Self::candidate_count) is `None`.
    pub fn needs_full_logits(&self) -> bool {
        self.candidate_count().is_none()
    }

    /// Draws the next token from the logits of the whole vocabulary, one per token id.
    ///
    /// Repeating the call without an `accept` in between gives the same token.
    ///
    /// # Errors
    /// [`SamplerError::BadLogit`], [`SamplerError::NoCandidate`], [`SamplerError::BiasOutsideVocabulary`].
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, SamplerError> {
        self.sample_with(logits, Stream::Draw)
    }

    /// Draws again at the same position with an independent random number, for when the first draw
    /// was refused (by a grammar, say) and `logits` now has the refused tokens at -infinity.
    ///
    /// With the first number again, the second draw would depend on what the first one hit.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn sample_again(&mut self, logits: &[f32]) -> Result<Sampled, SamplerError> {
        self.sample_with(logits, Stream::Redraw)
    }

    fn sample_with(&mut self, logits: &[f32], stream: Stream) -> Result<Sampled, SamplerError> {
        let stats = SoftmaxStats::of(logits)?;
        self.fill(logits);
        let (id, prob) = self.run(stats.n_vocab, stream)?;
        Ok(Sampled {
            id,
            logprob: stats.logprob(logits[id as usize]),
            prob,
        })
    }

    /// Draws the next token from the [`candidate_count`](Self::candidate_count) largest logits (or
    /// more), in any order, and the softmax statistics of the whole vocabulary.
    ///
    /// The result equals that of [`sample`](Self::sample) on all logits.
    ///
    /// # Errors
    /// As [`sample`](Self::sample), and [`SamplerError::WrongCandidateCount`] when there are too few
    /// candidates or the lists differ in length.
    pub fn sample_candidates(
        &mut self,
        ids: &[u32],
        logits: &[f32],
        stats: &SoftmaxStats,
    ) -> Result<Sampled, SamplerError> {
        let needed = self.candidate_count().unwrap_or(stats.n_vocab);
        let needed = needed.min(stats.n_vocab);
        if ids.len() < needed || ids.len() != logits.len() {
            return Err(SamplerError::WrongCandidateCount {
                expected: needed.max(logits.len()),
                found: ids.len(),
            });
        }
        for (&id, &value) in ids.iter().zip(logits) {
            if value.is_nan() || value == f32::INFINITY {
                return Err(SamplerError::BadLogit { id, value });
            }
        }
        // Broken logits outside the list show in the sum only.
        if !stats.sum.is_finite() || !stats.max.is_finite() {
            let value = if stats.max.is_finite() {
                stats.sum
            } else {
                stats.max
            };
            if value == f32::NEG_INFINITY {
                return Err(SamplerError::NoCandidate {
                    n_logits: stats.n_vocab,
                });
            }
            let id = ids.first().copied().unwrap_or_default();
            return Err(SamplerError::BadLogit { id, value });
        }
        self.work.clear();
        let pairs = ids.iter().zip(logits);
        self.work
            .extend(pairs.map(|(&id, &logit)| Candidate::new(id, logit)));
        // By id, as in the full form, so that stages that keep the order see the same one.
        self.work.sort_unstable_by_key(|c| c.id);
        let (id, prob) = self.run(stats.n_vocab, Stream::Draw)?;
        let raw = ids.iter().position(|&other| other == id);
        Ok(Sampled {
            id,
            logprob: stats.logprob(raw.map_or(f32::NEG_INFINITY, |i| logits[i])),
            prob,
        })
    }

    /// The distribution that [`sample`](Self::sample) draws from at this position: tokens with a
    /// probability above 0, summing to 1. Speculative decoding compares it with the draft's.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<Candidate>, SamplerError> {
        let stats = SoftmaxStats::of(logits)?;
        self.fill(logits);
        self.apply(stats.n_vocab)?;
        Ok(self.work.iter().filter(|c| c.prob > 0.0).copied().collect())
    }

    fn fill(&mut self, logits: &[f32]) {
        self.work.clear();
        let pairs = (0_u32..).zip(logits);
        self.work
            .extend(pairs.map(|(id, &logit)| Candidate::new(id, logit)));
    }

    /// All stages and the draw, on the work space.
    fn run(&mut self, n_vocab: usize, stream: Stream) -> Result<(u32, f32), SamplerError> {
        let original = self.apply(n_vocab)?;
        let u = random::uniform(self.seed, self.sequence, self.position, stream);
        let drawn =
            chain::draw(&self.work, u).ok_or(SamplerError::NoCandidate { n_logits: n_vocab })?;
        self.pending = Some(Pending {
            id: drawn.id,
            surprise: -f64::from(drawn.prob).log2(),
            original_prob: original
                .and_then(|probs| probs.into_iter().find(|c| c.id == drawn.id))
                .map_or(0.0, |c| f64::from(c.prob)),
        });
        Ok((drawn.id, drawn.prob))
    }

    /// All stages before the draw. Leaves a normalised distribution in the work space, and returns
    /// the one before adaptive-p where that is on.
    fn apply(&mut self, n_vocab: usize) -> Result<Option<Vec<Candidate>>, SamplerError> {
        let nothing_left = || SamplerError::NoCandidate { n_logits: n_vocab };
        let (params, work) = (&self.params, &mut self.work);
        chain::bias(work, &params.logit_bias, n_vocab)?;

        if let Some(version) = params.mirostat.version() {
            chain::temperature(work, params);
            chain::softmax(work).ok_or_else(nothing_left)?;
            chain::mirostat(work, version, self.mu, n_vocab);
            chain::softmax(work).ok_or_else(nothing_left)?;
            return Ok(None);
        }
        for stage in &params.stages {
            match stage {
                Stage::Penalties => self.history.penalise(work, params),
                Stage::Dry => self.history.dry(work, params, &self.breakers),
                Stage::TopNSigma => chain::top_n_sigma(work, params.top_n_sigma),
                Stage::TopK => chain::top_k(work, params.top_k),
                Stage::Typical => chain::typical(work, params.typical_p, params.min_keep),
                Stage::TopP => chain::top_p(work, params.top_p, params.min_keep),
                Stage::MinP => chain::min_p(work, params.min_p, params.min_keep),
                Stage::Xtc => {
                    let u = random::uniform(self.seed, self.sequence, self.position, Stream::Xtc);
                    chain::xtc(work, params, u);
                }
                Stage::Temperature => chain::temperature(work, params),
            }
        }
        chain::softmax(work).ok_or_else(nothing_left)?;
        if params.adaptive_target < 0.0 {
            return Ok(None);
        }
        let original = work.clone();
        chain::adaptive_p(work, params.adaptive_target, self.adaptive);
        chain::softmax(work).ok_or_else(nothing_left)?;
        Ok(Some(original))
    }
}
