//! Byte-pair encoding by merge rank: over bytes spelled as characters (`gpt2`) or over characters (`gemma4`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::TokenizerError;
use super::pretokenizer::Pretokenizer;
use super::unicode::{announced_len, scrub};
use super::vocab::{Spelling, Vocab, byte_level_char, push_marked};

/// Stands for a character that neither the vocabulary nor any merge knows.
const NO_SYMBOL: u32 = u32::MAX;

/// Merge rules and the cut in front of them.
///
/// A symbol is a text that can occur while merging. Symbols below the vocabulary's size are token ids;
/// the others are texts that occur in merges only.
#[derive(Debug, Clone)]
pub(super) struct Bpe {
    pretokenizer: Pretokenizer,
    spelling: Spelling,
    /// (left, right) to (rank, merged).
    merges: HashMap<(u32, u32), (u32, u32)>,
    extra_symbols: HashMap<Box<[u8]>, u32>,
    extra_texts: Vec<Box<[u8]>>,
    /// Byte-level: the symbol of each byte.
    byte_symbols: Vec<u32>,
    /// Otherwise: the token `<0xHH>` of each byte.
    byte_tokens: Vec<Option<u32>>,
}

/// Scratch space of one call.
#[derive(Debug, Default)]
struct Merging {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    /// [`NO_SYMBOL`] for a character without symbol; those never merge.
    id: u32,
    /// Bytes of the piece that this symbol covers; 0 once it has been merged into its left neighbour.
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that a merge applies to. The order is that of application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    right: usize,
    /// What stood there when the candidate was offered; anything else makes it stale.
    ids: (u32, u32),
    merged: u32,
}

impl Bpe {
    /// Reads the merge list; of equal merges the first counts.
    ///
    /// # Errors
    /// A merge that does not consist of two parts with a blank between them.
    pub(super) fn new(
        vocab: &Vocab,
        merges: &[String],
        pretokenizer: Pretokenizer,
        spelling: Spelling,
    ) -> Result<Self, TokenizerError> {
        let mut bpe = Self {
            pretokenizer,
            spelling,
            merges: HashMap::with_capacity(merges.len()),
            extra_symbols: HashMap::new(),
            extra_texts: vec![],
            byte_symbols: vec![],
            byte_tokens: (0..=u8::MAX).map(|byte| vocab.byte_id(byte)).collect(),
        };
        let mut merged_text = vec![];
        for (rank, merge) in (0u32..).zip(merges) {
            // A part may be a blank itself, hence the search behind the first byte.
            let bad = || TokenizerError::Merge {
                idx: rank as usize,
                text: merge.clone(),
            };
            let bytes = merge.as_bytes();
            let blank = bytes
                .iter()
                .skip(1)
                .position(|&byte| byte == b' ')
                .map(|at| at + 1)
                .ok_or_else(bad)?;
            let (left, right) = (&bytes[..blank], &bytes[blank + 1..]);
            if right.is_empty() {
                return Err(bad());
            }
            merged_text.clear();
            merged_text.extend_from_slice(left);
            merged_text.extend_from_slice(right);
            let pair = (bpe.intern(vocab, left), bpe.intern(vocab, right));
            let merged = bpe.intern(vocab, &merged_text);
            bpe.merges.entry(pair).or_insert((rank, merged));
        }
        for byte in 0..=u8::MAX {
            let symbol = bpe.symbol(
                vocab,
                byte_level_char(byte).encode_utf8(&mut [0; 4]).as_bytes(),
            );
            bpe.byte_symbols.push(symbol);
        }
        Ok(bpe)
    }

    fn intern(&mut self, vocab: &Vocab, text: &[u8]) -> u32 {
        let known = self.symbol(vocab, text);
        if known != NO_SYMBOL {
            return known;
        }
        let symbol = (vocab.len() + self.extra_texts.len()) as u32;
        self.extra_symbols.insert(text.into(), symbol);
        self.extra_texts.push(text.into());
        symbol
    }

    fn symbol(&self, vocab: &Vocab, text: &[u8]) -> u32 {
        vocab
            .id(text)
            .or_else(|| self.extra_symbols.get(text).copied())
            .unwrap_or(NO_SYMBOL)
    }

    /// Appends the tokens of `text`, which contains no special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        let text = scrub(text);
        let mut merging = Merging::default();
        let mut spelled = vec![];
        match self.spelling {
            Spelling::ByteLevel => {
                for range in self.pretokenizer.split(&text) {
                    self.encode_bytes(vocab, &text[range], &mut spelled, &mut merging, out);
                }
            }
            Spelling::Marked => {
                let mut marked = Vec::with_capacity(text.len() * 2);
                push_marked(&text, &mut marked);
                for range in self.pretokenizer.split(&marked) {
                    self.encode_chars(vocab, &marked[range], &mut merging, out);
                }
            }
        }
    }

    /// One piece of a byte-level vocabulary: every byte starts as a symbol.
    fn encode_bytes(
        &self,
        vocab: &Vocab,
        piece: &[u8],
        spelled: &mut Vec<u8>,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        if self.pretokenizer.whole_word_first {
            spelled.clear();
            for &byte in piece {
                spelled
                    .extend_from_slice(byte_level_char(byte).encode_utf8(&mut [0; 4]).as_bytes());
            }
            if let Some(id) = vocab.id(spelled) {
                out.push(id);
                return;
            }
        }
        merging.symbols.clear();
        for (start, &byte) in piece.iter().enumerate() {
            merging.push(self.byte_symbols[usize::from(byte)], start, 1);
        }
        self.merge(merging);
        for symbol in merging.symbols.iter().filter(|symbol| symbol.len > 0) {
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
            } else {
                // A byte that the vocabulary lacks is lost, as everywhere.
                let bytes = &piece[symbol.start..symbol.start + symbol.len];
                let singles = bytes
                    .iter()
                    .map(|&byte| self.byte_symbols[usize::from(byte)]);
                out.extend(singles.filter(|&id| (id as usize) < vocab.len()));
            }
        }
    }

    /// One line of a vocabulary of characters.
    fn encode_chars(&self, vocab: &Vocab, piece: &[u8], merging: &mut Merging, out: &mut Vec<u32>) {
        if piece.first() == Some(&b'\n')
            && let Some(id) = vocab.id(piece)
        {
            out.push(id);
            return;
        }
        merging.symbols.clear();
        let mut start = 0;
        while start < piece.len() {
            let len = announced_len(piece[start]).min(piece.len() - start);
            merging.push(self.symbol(vocab, &piece[start..start + len]), start, len);
            start += len;
        }
        self.merge(merging);
        for symbol in merging.symbols.iter().filter(|symbol| symbol.len > 0) {
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
            } else {
                let bytes = &piece[symbol.start..symbol.start + symbol.len];
                out.extend(
                    bytes
                        .iter()
                        .filter_map(|&byte| self.byte_tokens[usize::from(byte)]),
                );
            }
        }
    }

    /// Applies the merge of lowest rank, leftmost first, until none applies.
    fn merge(&self, merging: &mut Merging) {
        merging.queue.clear();
        for right in 1..merging.symbols.len() {
            self.offer(merging, right - 1, right);
        }
        while let Some(Reverse(found)) = merging.queue.pop() {
            let (left, right) = (merging.symbols[found.left], merging.symbols[found.right]);
            if left.len == 0
                || right.len == 0
                || (left.id, right.id) != found.ids
                || left.next != Some(found.right)
            {
                continue;
            }
            merging.symbols[found.left] = Symbol {
                id: found.merged,
                len: left.len + right.len,
                next: right.next,
                ..left
            };
            merging.symbols[found.right].len = 0;
            if let Some(next) = right.next {
                merging.symbols[next].prev = Some(found.left);
                self.offer(merging, found.left, next);
            }
            if let Some(prev) = left.prev {
                self.offer(merging, prev, found.left);
            }
        }
    }

    fn offer(&self, merging: &mut Merging, left: usize, right: usize) {
        let ids = (merging.symbols[left].id, merging.symbols[right].id);
        if let Some(&(rank, merged)) = self.merges.get(&ids) {
            merging.queue.push(Reverse(Candidate {
                rank,
                left,
                right,
                ids,
                merged,
            }));
        }
    }
}

impl Merging {
    fn push(&mut self, id: u32, start: usize, len: usize) {
        let idx = self.symbols.len();
        if let Some(last) = self.symbols.last_mut() {
            last.next = Some(idx);
        }
        self.symbols.push(Symbol {
            id,
            start,
            len,
            prev: idx.checked_sub(1),
            next: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bpe(tokens: &[&str], merges: &[&str], pre: &str) -> (Vocab, Bpe) {
        let vocab = Vocab::new(
            tokens.iter().map(|&text| text.to_owned()).collect(),
            None,
            None,
        )
        .unwrap();
        let merges: Vec<String> = merges.iter().map(|&text| text.to_owned()).collect();
        let pre = Pretokenizer::by_name(pre).unwrap();
        let bpe = Bpe::new(&vocab, &merges, pre, Spelling::ByteLevel).unwrap();
        (vocab, bpe)
    }

    fn encode((vocab, bpe): &(Vocab, Bpe), text: &str) -> Vec<u32> {
        let mut out = vec![];
        bpe.encode(vocab, text.as_bytes(), &mut out);
        out
    }

    #[test]
    fn lowest_rank_first_then_leftmost() {
        let model = bpe(
            &["a", "b", "c", "ab", "bc", "aa"],
            &["b c", "a b", "a a"],
            "gpt-2",
        );
        assert_eq!(encode(&model, "abc"), [0, 4]);
        assert_eq!(encode(&model, "aaa"), [5, 0]);
        assert_eq!(encode(&model, "aaaaa"), [5, 5, 0]);
    }

    #[test]
    fn merges_may_pass_through_texts_without_token() {
        let model = bpe(&["a", "b", "c", "abc"], &["a b", "ab c"], "gpt-2");
        assert_eq!(encode(&model, "abc"), [3]);
        assert_eq!(
            encode(&model, "ab"),
            [0, 1],
            "the merged text has no token, so its bytes are used"
        );
        assert_eq!(encode(&model, "axb"), [0, 1], "the byte of x is missing");
    }

    #[test]
    fn first_of_equal_merges_counts() {
        let model = bpe(
            &["a", "b", "c", "ab", "bc"],
            &["a b", "b c", "a b"],
            "gpt-2",
        );
        assert_eq!(encode(&model, "abc"), [3, 2]);
    }

    #[test]
    fn whole_words_skip_the_merges() {
        let tokens = ["a", "b", "ab", "abb", "Ġ", "Ġabb"];
        assert_eq!(
            encode(&bpe(&tokens, &["a b"], "llama-bpe"), "abb abb"),
            [3, 5]
        );
        assert_eq!(encode(&bpe(&tokens, &["a b"], "gpt-2"), "abb"), [2, 1]);
    }

    #[test]
    fn merges_need_two_parts() {
        let vocab = Vocab::new(vec!["a".to_owned()], None, None).unwrap();
        for bad in ["", "a", " a", "a "] {
            let found = Bpe::new(
                &vocab,
                &[bad.to_owned()],
                Pretokenizer::unnamed(),
                Spelling::ByteLevel,
            );
            assert!(
                matches!(found, Err(TokenizerError::Merge { idx: 0, .. })),
                "{bad:?}"
            );
        }
        let blank = Bpe::new(
            &vocab,
            &["  a".to_owned()],
            Pretokenizer::unnamed(),
            Spelling::ByteLevel,
        );
        assert!(blank.is_ok(), "a part may be a blank");
    }
}
