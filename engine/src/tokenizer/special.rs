//! Cutting a text at the tokens that are matched as written, before anything else looks at it.

use super::trie::Trie;
use super::vocab::{Kind, Vocab};

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text without special tokens; never empty.
    Text(&'a [u8]),
    /// One special token.
    Token(u32),
}

/// The control, unknown and user-defined tokens of a vocabulary.
#[derive(Debug, Clone)]
pub(super) struct SpecialTokens {
    /// Text to index in `tokens`.
    trie: Trie,
    /// Longest text first: an earlier one wins over any that it overlaps.
    tokens: Vec<Special>,
}

#[derive(Debug, Clone, Copy)]
struct Special {
    id: u32,
    len: usize,
    /// Found only when the caller asks for special tokens to be parsed.
    on_request: bool,
    strips_left: bool,
    strips_right: bool,
}

/// Occurrences of one token at each of the places `start..end`.
///
/// Vocabularies have tokens for runs of 2 to 31 blanks: in a long run each of them occurs everywhere.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Index in [`SpecialTokens::tokens`].
    place: u32,
    start: usize,
    end: usize,
}

impl SpecialTokens {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let matched = Kind::CONTROL.with(Kind::UNKNOWN).with(Kind::USER_DEFINED);
        let mut tokens: Vec<Special> = vocab
            .iter()
            // Of equal texts only the one that answers to the text; an empty text is none.
            .filter(|&(id, text, kind)| kind.has(matched) && vocab.id(text) == Some(id))
            .map(|(id, text, kind)| Special {
                id,
                len: text.len(),
                on_request: kind.has(Kind::CONTROL.with(Kind::UNKNOWN)),
                strips_left: kind.has(Kind::STRIPS_LEFT),
                strips_right: kind.has(Kind::STRIPS_RIGHT),
            })
            .collect();
        tokens.sort_by_key(|token| (std::cmp::Reverse(token.len), token.id));
        let mut trie = Trie::new();
        for (place, token) in (0u32..).zip(&tokens) {
            if let Some(text) = vocab.text(token.id) {
                trie.insert(text, place);
            }
        }
        Self { trie, tokens }
    }

    /// Cuts `text`. Longer tokens are placed first wherever they occur, from left to right; shorter ones fill what is left.
    pub(super) fn partition<'a>(&self, text: &'a [u8], parse_special: bool) -> Vec<Fragment<'a>> {
        let mut runs = self.find(text, parse_special);
        if runs.is_empty() {
            return if text.is_empty() {
                vec![]
            } else {
                vec![Fragment::Text(text)]
            };
        }
        runs.sort_unstable_by_key(|run| (run.place, run.start));

        // What is taken was taken by a token that is at least as long, so it overlaps a later one only at an end.
        let mut taken = vec![false; text.len()];
        let mut placed: Vec<(usize, usize, u32)> = vec![];
        for run in runs {
            let token = self.tokens[run.place as usize];
            for start in run.start..run.end {
                let (mut from, mut to) = (start, start + token.len);
                if taken[from] || taken[to - 1] {
                    continue;
                }
                while token.strips_left && from > 0 && is_space(text[from - 1]) && !taken[from - 1]
                {
                    from -= 1;
                }
                while token.strips_right && to < text.len() && is_space(text[to]) && !taken[to] {
                    to += 1;
                }
                taken[from..to].fill(true);
                placed.push((from, to, token.id));
            }
        }
        placed.sort_unstable();

        let mut fragments = Vec::with_capacity(placed.len() * 2 + 1);
        let mut at = 0;
        for (from, to, id) in placed {
            if at < from {
                fragments.push(Fragment::Text(&text[at..from]));
            }
            fragments.push(Fragment::Token(id));
            at = to;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    /// Every occurrence of every token.
    fn find(&self, text: &[u8], parse_special: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = vec![];
        // The last run of each token, as an index into `runs`.
        let mut last: Vec<usize> = vec![];
        for start in 0..text.len() {
            for (_, place) in self.trie.prefixes(&text[start..]) {
                if !parse_special && self.tokens[place as usize].on_request {
                    continue;
                }
                last.resize(self.tokens.len(), usize::MAX);
                let last = &mut last[place as usize];
                match runs.get_mut(*last) {
                    Some(run) if run.end == start => run.end += 1,
                    _ => {
                        *last = runs.len();
                        runs.push(Run {
                            place,
                            start,
                            end: start + 1,
                        });
                    }
                }
            }
        }
        runs
    }
}

/// White space as C's `isspace` sees it.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0D)
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn specials(tokens: &[(&str, i32)]) -> (Vocab, SpecialTokens) {
        let texts = tokens.iter().map(|(text, _)| (*text).to_owned()).collect();
        let types: Vec<i32> = tokens.iter().map(|(_, kind)| *kind).collect();
        let vocab = Vocab::new(texts, None, Some(&types)).unwrap();
        let specials = SpecialTokens::new(&vocab);
        (vocab, specials)
    }

    #[test]
    fn longest_first_not_leftmost_first() {
        let (_, specials) = specials(&[("ab", 4), ("bcd", 4), ("x", 1)]);
        assert_eq!(specials.partition(b"abcd", false), [Text(b"a"), Token(1)]);
        assert_eq!(specials.partition(b"abab", false), [Token(0), Token(0)]);
        assert_eq!(specials.partition(b"xyz", false), [Text(b"xyz")]);
        assert_eq!(specials.partition(b"", false), []);
    }

    #[test]
    fn runs_are_cut_from_the_left() {
        let (_, specials) = specials(&[("  ", 4), ("   ", 4)]);
        assert_eq!(
            specials.partition(b"       ", false),
            [Token(1), Token(1), Text(b" ")]
        );
        assert_eq!(specials.partition(b"     ", false), [Token(1), Token(0)]);
    }

    #[test]
    fn control_tokens_only_on_request() {
        let (_, specials) = specials(&[("<s>", 3), ("<unk>", 2), ("<tool>", 4), ("", 3)]);
        assert_eq!(
            specials.partition(b"<s><tool><unk>", false),
            [Text(b"<s>"), Token(2), Text(b"<unk>")]
        );
        assert_eq!(
            specials.partition(b"<s><tool><unk>", true),
            [Token(0), Token(2), Token(1)]
        );
    }

    #[test]
    fn stripping_takes_the_blanks_along() {
        let (mut vocab, _) = specials(&[("<a>", 3), ("<b>", 3)]);
        vocab.set_kind(0, Kind::CONTROL.with(Kind::STRIPS_LEFT));
        vocab.set_kind(1, Kind::CONTROL.with(Kind::STRIPS_RIGHT));
        let specials = SpecialTokens::new(&vocab);
        assert_eq!(
            specials.partition(b"x \n<a> y <b> \t z", true),
            [Text(b"x"), Token(0), Text(b" y "), Token(1), Text(b"z")]
        );
        assert_eq!(specials.partition(b"  <a>", true), [Token(0)]);
    }
}
