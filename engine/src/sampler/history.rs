//! Penalties and DRY: stages that look at the tokens so far.

use super::{Candidate, SamplerParams};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The strings that end a repetition for DRY where nothing else is asked for.
pub const DEFAULT_DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The end of the accepted tokens, and how often each occurs in the penalties' window.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Oldest first; as long as the longer of the two windows.
    tokens: VecDeque<u32>,
    /// Occurrences among the last `repeat_last_n` tokens: kept up to date token by token, so that a
    /// long window costs nothing per step.
    counts: HashMap<u32, u32>,
    n_penalty: usize,
    n_kept: usize,
}

impl History {
    pub(super) fn new(params: &SamplerParams) -> Self {
        let n_penalty = if params.penalises() {
            params.repeat_last_n
        } else {
            0
        };
        let n_dry = if params.dry_is_on() {
            params.dry_last_n
        } else {
            0
        };
        Self {
            tokens: VecDeque::new(),
            counts: HashMap::new(),
            n_penalty,
            n_kept: n_penalty.max(n_dry),
        }
    }

    pub(super) fn push(&mut self, id: u32) {
        if self.n_kept == 0 {
            return;
        }
        if self.n_penalty > 0 {
            // The token that leaves the window stands `n_penalty` from the end.
            if let Some(i) = self.tokens.len().checked_sub(self.n_penalty) {
                let leaving = self.tokens[i];
                if let Some(count) = self.counts.get_mut(&leaving) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&leaving);
                    }
                }
            }
            *self.counts.entry(id).or_insert(0) += 1;
        }
        if self.tokens.len() == self.n_kept {
            self.tokens.pop_front();
        }
        self.tokens.push_back(id);
    }

    /// Repeat, frequency and presence penalties.
    pub(super) fn penalise(&self, list: &mut [Candidate], params: &SamplerParams) {
        if self.counts.is_empty() {
            return;
        }
        for c in list {
            let Some(&count) = self.counts.get(&c.id) else {
                continue;
            };
            if c.logit == f32::NEG_INFINITY {
                continue;
            }
            let z = if c.logit <= 0.0 {
                c.logit * params.repeat_penalty
            } else {
                c.logit / params.repeat_penalty
            };
            let z = z - count as f32 * params.frequency_penalty - params.presence_penalty;
            // Extreme parameters overflow; the clamp keeps the candidate and the softmax finite.
            c.logit = z.clamp(f32::MIN, f32::MAX) + 0.0;
        }
    }

    /// Lowers tokens that would continue a repetition of the newest tokens.
    pub(super) fn dry(
        &self,
        list: &mut [Candidate],
        params: &SamplerParams,
        breakers: &DryBreakers,
    ) {
        if !params.dry_is_on() {
            return;
        }
        // Newest first, so that suffixes are prefixes.
        let n = self.tokens.len().min(params.dry_last_n);
        let recent: Vec<u32> = self.tokens.iter().rev().take(n).copied().collect();
        let allowed = params.dry_allowed_length;
        if n <= allowed {
            return;
        }
        let limit = breakers.limit(&recent);
        if limit < allowed {
            return;
        }
        let repeats = common_prefixes(&recent);
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for i in 1..n {
            let n_repeated = repeats[i].min(limit);
            if n_repeated >= allowed {
                // What followed the earlier occurrence would lengthen the repetition.
                let best = longest.entry(recent[i - 1]).or_insert(0);
                *best = n_repeated.max(*best);
            }
        }
        if longest.is_empty() {
            return;
        }
        let base = f64::from(params.dry_base);
        // The power must stay an f32: e^88.7228391 is the largest.
        let cap = if params.dry_base > 1.000_001 {
            (88.722_839_1 / base.ln()).floor()
        } else {
            f64::INFINITY
        };
        for c in list {
            let Some(&n_repeated) = longest.get(&c.id) else {
                continue;
            };
            if breakers.is_single(c.id) || c.logit == f32::NEG_INFINITY {
                continue;
            }
            let exponent = ((n_repeated - allowed) as f64).min(cap);
            let penalty = f64::from(params.dry_multiplier) * base.powf(exponent);
            let z = f64::from(c.logit) - penalty;
            c.logit = z.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32 + 0.0;
        }
    }
}

/// For each `i`, how many tokens `list[i..]` and `list` have in common at their beginnings (the
/// Z-function, linear time). Entry 0 is 0.
fn common_prefixes(list: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; list.len()];
    let (mut left, mut right) = (0, 0);
    for i in 1..list.len() {
        let mut n = if i < right {
            lengths[i - left].min(right - i)
        } else {
            0
        };
        while i + n < list.len() && list[n] == list[i + n] {
            n += 1;
        }
        lengths[i] = n;
        if i + n > right {
            (left, right) = (i, i + n);
        }
    }
    lengths
}

/// Token sequences across which DRY does not look for repetitions.
#[derive(Clone, Debug, Default)]
pub struct DryBreakers {
    /// First token of a breaker to the tokens that must follow it; an empty tail is a token that is
    /// a breaker by itself.
    tails: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl DryBreakers {
    /// Finds the token sequences that spell these strings.
    ///
    /// A token whose text contains a whole string is a breaker by itself. A token whose text ends
    /// with a beginning of the string is the head of one, and `tokenize` gives the tail. Strings are
    /// cut to 40 characters and tails to 20 tokens; empty strings are passed over.
    ///
    /// # Shapes
    /// `vocab`: the bytes of every token, by id.
    pub fn compile<T: AsRef<[u8]>>(
        strings: &[impl AsRef<str>],
        vocab: impl IntoIterator<Item = T>,
        tokenize: impl Fn(&str) -> Vec<u32>,
    ) -> Self {
        /// Longest string, in characters.
        const MAX_CHARS: usize = 40;
        /// Longest tail, in tokens.
        const MAX_TAIL: usize = 20;
        let strings: Vec<String> = strings
            .iter()
            .map(|s| s.as_ref().chars().take(MAX_CHARS).collect())
            .filter(|s: &String| !s.is_empty())
            .collect();
        // The tails do not depend on the head token: one tokenisation per border of each string.
        let borders: Vec<Vec<(&str, Vec<u32>)>> = strings
            .iter()
            .map(|s| {
                let cuts = s.char_indices().skip(1).map(|(i, _)| s.split_at(i));
                cuts.map(|(head, tail)| {
                    let mut tail = tokenize(tail);
                    tail.truncate(MAX_TAIL);
                    (head, tail)
                })
                .filter(|(_, tail)| !tail.is_empty())
                .collect()
            })
            .collect();
        let mut tails: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
        for (id, text) in (0_u32..).zip(vocab) {
            let text = text.as_ref();
            let mut found: Vec<Vec<u32>> = Vec::new();
            for (string, borders) in strings.iter().zip(&borders) {
                if contains(text, string.as_bytes()) {
                    found.push(Vec::new());
                    continue;
                }
                let heads = borders
                    .iter()
                    .filter(|(head, _)| text.ends_with(head.as_bytes()));
                found.extend(heads.map(|(_, tail)| tail.clone()));
            }
            if !found.is_empty() {
                tails.insert(id, found);
            }
        }
        Self { tails }
    }

    /// True if nothing is a breaker.
    pub fn is_empty(&self) -> bool {
        self.tails.is_empty()
    }

    /// True if the token is a breaker by itself.
    fn is_single(&self, id: u32) -> bool {
        let tails = self.tails.get(&id);
        tails.is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many of the newest tokens a repetition may span. `recent` is newest first.
    fn limit(&self, recent: &[u32]) -> usize {
        for (i, id) in recent.iter().enumerate() {
            let Some(tails) = self.tails.get(id) else {
                continue;
            };
            let matching = tails.iter().filter(|tail| {
                tail.len() <= i && tail.iter().eq(recent[i - tail.len()..i].iter().rev())
            });
            if let Some(longest) = matching.map(Vec::len).max() {
                return i - longest;
            }
        }
        recent.len()
    }
}

/// True if `needle`, which is not empty, occurs in `haystack`.
fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
