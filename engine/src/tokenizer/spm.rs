//! Merging by score, as `SentencePiece` does, over characters with a fallback to bytes (`llama`).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::unicode::announced_len;
use super::vocab::Vocab;

#[derive(Debug, Clone, Copy)]
struct Symbol {
    /// Bytes of the text that this symbol covers; `len` is 0 once it has been merged into its left neighbour.
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose texts together are a token. The greatest is merged next.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when offered; anything else makes the candidate stale.
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// Byte fallback of a vocabulary with scores.
#[derive(Debug, Clone)]
pub(super) struct Spm {
    byte_tokens: Vec<Option<u32>>,
}

impl Spm {
    /// `unknown` stands for bytes that have no token of their own.
    pub(super) fn new(vocab: &Vocab, unknown: Option<u32>) -> Self {
        let token = |byte: u8| {
            vocab
                .byte_id(byte)
                .or_else(|| vocab.id(&[byte]))
                .or(unknown)
        };
        Self {
            byte_tokens: (0..=u8::MAX).map(token).collect(),
        }
    }

    /// Appends the tokens of `text`, whose blanks are marked already. It need not be valid UTF-8.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut start = 0;
        while start < text.len() {
            let idx = symbols.len();
            let len = announced_len(text[start]).min(text.len() - start);
            if let Some(last) = symbols.last_mut() {
                last.next = Some(idx);
            }
            symbols.push(Symbol {
                start,
                len,
                prev: idx.checked_sub(1),
                next: None,
            });
            start += len;
        }

        let mut queue = BinaryHeap::new();
        let offer =
            |queue: &mut BinaryHeap<Candidate>, symbols: &[Symbol], left: usize, right: usize| {
                let start = symbols[left].start;
                let len = symbols[left].len + symbols[right].len;
                if len > vocab.max_token_bytes() {
                    return;
                }
                if let Some(id) = vocab.id(&text[start..start + len]) {
                    queue.push(Candidate {
                        score: vocab.score(id),
                        left,
                        right,
                        len,
                    });
                }
            };
        for right in 1..symbols.len() {
            offer(&mut queue, &symbols, right - 1, right);
        }
        while let Some(found) = queue.pop() {
            let (left, right) = (symbols[found.left], symbols[found.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != found.len {
                continue;
            }
            symbols[found.left] = Symbol {
                len: found.len,
                next: right.next,
                ..left
            };
            symbols[found.right].len = 0;
            if let Some(next) = right.next {
                symbols[next].prev = Some(found.left);
            }
            if let Some(prev) = left.prev {
                offer(&mut queue, &symbols, prev, found.left);
            }
            if let Some(next) = right.next {
                offer(&mut queue, &symbols, found.left, next);
            }
        }

        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let bytes = &text[symbol.start..symbol.start + symbol.len];
            match vocab.id(bytes) {
                Some(id) => out.push(id),
                None => out.extend(
                    bytes
                        .iter()
                        .filter_map(|&byte| self.byte_tokens[usize::from(byte)]),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(tokens: &[(&str, f32)], text: &[u8]) -> Vec<u32> {
        let texts = tokens.iter().map(|(text, _)| (*text).to_owned()).collect();
        let scores = tokens.iter().map(|(_, score)| *score).collect();
        let vocab = Vocab::new(texts, Some(scores), None).unwrap();
        let mut out = vec![];
        Spm::new(&vocab, None).encode(&vocab, text, &mut out);
        out
    }

    #[test]
    fn highest_score_first_then_leftmost() {
        let tokens = [
            ("a", 0.0),
            ("b", 0.0),
            ("c", 0.0),
            ("ab", -2.0),
            ("bc", -1.0),
            ("aa", -3.0),
        ];
        assert_eq!(encode(&tokens, b"abc"), [0, 4]);
        assert_eq!(encode(&tokens, b"aaa"), [5, 0]);
    }

    #[test]
    fn unknown_characters_become_bytes() {
        let tokens = [
            ("a", 0.0),
            ("<0xC3>", 0.0),
            ("<0xA9>", 0.0),
            ("<0xFF>", 0.0),
        ];
        assert_eq!(encode(&tokens, "aéa".as_bytes()), [0, 1, 2, 0]);
        assert_eq!(
            encode(&tokens, b"\xFFa"),
            [3, 0],
            "the stray byte announces a longer character"
        );
        assert_eq!(encode(&tokens, b"z"), [0u32; 0], "no token at all");
    }

    #[test]
    fn odd_scores_do_no_harm() {
        let tokens = [
            ("a", f32::NAN),
            ("aa", f32::NAN),
            ("aaa", f32::NEG_INFINITY),
        ];
        assert_eq!(encode(&tokens, b"aaa").len(), 1);
    }
}
