//! The stages, as functions over a list of candidates.
//!
//! A banned candidate has the logit -infinity and the probability 0. After the bias no logit is NaN or
//! +infinity, and no stage makes one.

use super::{SamplerError, SamplerParams};
use std::cmp::Ordering;

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit after the stages so far.
    pub logit: f32,
    /// Its probability among the candidates, as of the last softmax.
    pub prob: f32,
}

impl Candidate {
    /// A candidate before any softmax.
    pub(super) fn new(id: u32, logit: f32) -> Self {
        let prob = 0.0;
        Self { id, logit, prob }
    }
}

/// Larger logit first, then lower id: the one order of the whole module.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Sorts unless sorted. `-0.0` and `0.0` compare as different in a total order, so they are made one.
pub(super) fn sort(list: &mut [Candidate]) {
    if !list.is_sorted_by(|a, b| descending(a, b) != Ordering::Greater) {
        list.sort_unstable_by(descending);
    }
}

/// The largest logit, if any is above -infinity.
fn max_logit(list: &[Candidate]) -> Option<f32> {
    let max = list
        .iter()
        .map(|c| c.logit)
        .fold(f32::NEG_INFINITY, f32::max);
    (max > f32::NEG_INFINITY).then_some(max)
}

/// Sets the probabilities. `None`, with nothing changed, when no candidate is left.
pub(super) fn softmax(list: &mut [Candidate]) -> Option<()> {
    let max = max_logit(list)?;
    let mut sum = 0.0_f64;
    for c in list.iter_mut() {
        c.prob = (c.logit - max).exp();
        sum += f64::from(c.prob);
    }
    for c in list {
        c.prob = (f64::from(c.prob) / sum) as f32;
    }
    Some(())
}

/// Adds the biases, and makes every zero a positive one so that ties are ties.
pub(super) fn bias(
    list: &mut [Candidate],
    biases: &[(u32, f32)],
    n_vocab: usize,
) -> Result<(), SamplerError> {
    for &(id, value) in biases {
        if id as usize >= n_vocab {
            return Err(SamplerError::BiasOutsideVocabulary { id, n_vocab });
        }
        // Before any stage the list is ordered by id.
        if let Ok(i) = list.binary_search_by_key(&id, |c| c.id) {
            // Two huge finite values may sum to infinity, which no later stage expects.
            list[i].logit = (list[i].logit + value).min(f32::MAX);
        }
    }
    for c in list {
        c.logit += 0.0;
    }
    Ok(())
}

/// Keeps the `k` largest, sorted; 0 keeps all as they are.
pub(super) fn top_k(list: &mut Vec<Candidate>, k: usize) {
    if k == 0 {
        return;
    }
    if k < list.len() {
        list.select_nth_unstable_by(k - 1, descending);
        list.truncate(k);
    }
    sort(list);
}

/// Makes logits further than `n` standard deviations below the largest -infinity.
pub(super) fn top_n_sigma(list: &mut [Candidate], n: f32) {
    let Some(max) = max_logit(list) else { return };
    if n <= 0.0 || list.len() <= 1 {
        return;
    }
    let finite = || {
        list.iter()
            .map(|c| f64::from(c.logit))
            .filter(|z| z.is_finite())
    };
    let count = finite().count() as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|z| (z - mean).powi(2)).sum::<f64>() / count;
    let limit = f64::from(max) - f64::from(n) * variance.sqrt();
    for c in list {
        if f64::from(c.logit) < limit {
            c.logit = f32::NEG_INFINITY;
        }
    }
}

/// Length of the shortest prefix whose probabilities satisfy `enough`, and at least `min_keep`.
fn prefix(list: &[Candidate], min_keep: usize, enough: impl Fn(f64) -> bool) -> usize {
    let mut cumulative = 0.0_f64;
    for (i, c) in list.iter().enumerate() {
        cumulative += f64::from(c.prob);
        if enough(cumulative) && i + 1 >= min_keep {
            return i + 1;
        }
    }
    list.len()
}

/// Keeps the smallest set of the largest probabilities that reaches `p`.
pub(super) fn top_p(list: &mut Vec<Candidate>, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    sort(list);
    if softmax(list).is_some() {
        list.truncate(prefix(list, min_keep, |sum| sum >= f64::from(p)));
    }
}

/// Keeps candidates of at least `p` times the largest probability.
pub(super) fn min_p(list: &mut Vec<Candidate>, p: f32, min_keep: usize) {
    let Some(max) = max_logit(list) else { return };
    if p <= 0.0 {
        return;
    }
    let limit = max + p.ln();
    let kept = list.iter().filter(|c| c.logit >= limit).count();
    if kept >= min_keep {
        list.retain(|c| c.logit >= limit);
    } else {
        sort(list);
        list.truncate(min_keep);
    }
}

/// Keeps the candidates whose surprise is nearest to the mean surprise, until they exceed `p`.
pub(super) fn typical(list: &mut Vec<Candidate>, p: f32, min_keep: usize) {
    if p >= 1.0 || softmax(list).is_none() {
        return;
    }
    let entropy = entropy(list);
    // A probability that underflowed to 0 is infinitely surprising.
    let distance = |c: &Candidate| (-f64::from(c.prob).ln() - entropy).abs();
    list.sort_unstable_by(|a, b| {
        let order = distance(a).total_cmp(&distance(b));
        order.then_with(|| descending(a, b))
    });
    list.truncate(prefix(list, min_keep, |sum| sum > f64::from(p)));
}

/// `-Σ p ln p` in nats, with `0 ln 0 = 0`.
fn entropy(list: &[Candidate]) -> f64 {
    let probs = list.iter().map(|c| f64::from(c.prob)).filter(|&p| p > 0.0);
    -probs.map(|p| p * p.ln()).sum::<f64>()
}

/// With probability `xtc_probability` (decided by `u`) drops all but the last of the candidates
/// that reach the threshold.
pub(super) fn xtc(list: &mut Vec<Candidate>, params: &SamplerParams, u: f64) {
    let off = params.xtc_probability <= 0.0 || params.xtc_threshold > 0.5 || list.len() < 2;
    if off || u > f64::from(params.xtc_probability) {
        return;
    }
    sort(list);
    if softmax(list).is_none() {
        return;
    }
    let n_top = list
        .iter()
        .take_while(|c| c.prob >= params.xtc_threshold)
        .count();
    let n_dropped = n_top.saturating_sub(1);
    if list.len() - n_dropped >= params.min_keep {
        list.drain(..n_dropped);
    }
}

/// Divides by the temperature, which follows the entropy if its range is above 0. A temperature of 0
/// leaves the first largest logit.
pub(super) fn temperature(list: &mut [Candidate], params: &SamplerParams) {
    let Some(max) = max_logit(list) else { return };
    let mut t = f64::from(params.temperature);
    let range = f64::from(params.dynatemp_range);
    if range > 0.0 && list.len() > 1 && softmax(list).is_some() {
        let share = (entropy(list) / (list.len() as f64).ln()).clamp(0.0, 1.0);
        let low = (t - range).max(0.0);
        t = low + (t + range - low) * share.powf(f64::from(params.dynatemp_exponent));
    }
    if t > 0.0 {
        for c in list {
            // Relative to the largest: a tiny temperature must not overflow.
            c.logit = (f64::from(c.logit - max) / t) as f32 + 0.0;
        }
        return;
    }
    let best = list.iter().min_by(|a, b| descending(a, b)).map(|c| c.id);
    for c in list {
        if Some(c.id) != best {
            c.logit = f32::NEG_INFINITY;
        }
    }
}

/// Cuts the list where Mirostat with limit `mu` (bits) says. Expects probabilities.
pub(super) fn mirostat(list: &mut Vec<Candidate>, version: u8, mu: f64, n_vocab: usize) {
    sort(list);
    let n_kept = if version == 1 {
        mirostat_rank(list, mu, n_vocab)
    } else {
        let expected = list.iter().take_while(|c| -f64::from(c.prob).log2() <= mu);
        expected.count()
    };
    list.truncate(n_kept.max(1));
}

/// Mirostat 1: the rank at which a power law fitted to the first hundred candidates reaches `mu`.
fn mirostat_rank(list: &[Candidate], mu: f64, n_vocab: usize) -> usize {
    /// Candidates that the fit looks at.
    const N_FITTED: usize = 100;
    let (mut tb, mut tt) = (0.0, 0.0);
    for (i, pair) in list.windows(2).take(N_FITTED - 1).enumerate() {
        // An underflowed probability tells nothing about the slope.
        if pair[1].prob <= 0.0 {
            break;
        }
        let t = ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
        let b = (f64::from(pair[0].prob) / f64::from(pair[1].prob)).ln();
        tb += t * b;
        tt += t * t;
    }
    if tt == 0.0 {
        return 1; // a single candidate has no slope
    }
    let s = tb / tt;
    let epsilon = s - 1.0;
    let n = n_vocab as f64;
    // (ε 2^μ) / (1 - n^-ε), which tends to 2^μ / ln n as ε tends to 0.
    let base = if epsilon.abs() < 1e-9 {
        mu.exp2() / n.ln()
    } else {
        epsilon * mu.exp2() / (1.0 - n.powf(-epsilon))
    };
    let k = base.powf(1.0 / s);
    if k.is_nan() {
        return 1;
    }
    // The cast saturates.
    (k.floor() as usize).clamp(1, list.len())
}

/// Turns probabilities into logits that prefer those near a target which makes up for earlier draws.
pub(super) fn adaptive_p(list: &mut [Candidate], target: f32, (weighted, total): (f64, f64)) {
    let target = f64::from(target);
    let wanted = if total == 0.0 {
        target
    } else {
        (2.0 * target - weighted / total).clamp(0.0, 1.0)
    };
    for c in list.iter_mut().filter(|c| c.logit.is_finite()) {
        let d = (f64::from(c.prob) - wanted).abs() / 0.3;
        c.logit = (5.0 - 10.0 * d * d / (1.0 + d)) as f32;
    }
}

/// The first candidate at which the running sum of probabilities reaches `u` of their total.
pub(super) fn draw(list: &[Candidate], u: f64) -> Option<Candidate> {
    let total: f64 = list.iter().map(|c| f64::from(c.prob)).sum();
    let mut running = 0.0;
    let mut last = None;
    // Banned candidates would be hit by u = 0.
    for c in list.iter().filter(|c| c.prob > 0.0) {
        running += f64::from(c.prob);
        last = Some(*c);
        if running >= u * total {
            break;
        }
    }
    last
}
