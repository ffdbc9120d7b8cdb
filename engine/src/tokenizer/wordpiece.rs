//! `WordPiece`: longest match from the left inside normalised words (`bert`).

use super::trie::Trie;
use super::unicode::{
    self, CONTROL, MARK, PUNCTUATION, SPACE, SYMBOL, class_in, decode_lenient, push_code,
};
use super::vocab::{BLANK_MARK, Vocab};

/// The vocabulary as a trie. Tokens that start a word begin with U+2581, the others continue one.
#[derive(Debug, Clone)]
pub(super) struct WordPiece {
    trie: Trie,
    unknown: Option<u32>,
}

impl WordPiece {
    /// `unknown` stands for words that cannot be spelled.
    pub(super) fn new(vocab: &Vocab, unknown: Option<u32>) -> Self {
        let mut trie = Trie::new();
        for (id, text, _) in vocab.iter() {
            if vocab.id(text) == Some(id) {
                trie.insert(text, id);
            }
        }
        Self { trie, unknown }
    }

    /// Appends the tokens of `text`, which contains no special tokens.
    pub(super) fn encode(&self, text: &[u8], out: &mut Vec<u32>) {
        for word in words(text) {
            let before = out.len();
            let mut at = 0;
            while at < word.len() {
                let Some((len, id)) = self.trie.prefixes(&word[at..]).last() else {
                    out.truncate(before);
                    break;
                };
                out.push(id);
                at += len;
            }
            if out.len() == before {
                out.extend(self.unknown);
            }
        }
    }
}

/// Normalised words, each with a blank mark in front.
///
/// Marks are dropped, whether a code point carries them or they follow it; letters become small; punctuation and ideographs stand alone.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let classes = unicode::classes();
    let mut words = vec![];
    let mut word = BLANK_MARK.to_vec();
    let mut finish = |word: &mut Vec<u8>| {
        if word.len() > BLANK_MARK.len() {
            words.push(std::mem::replace(word, BLANK_MARK.to_vec()));
        }
    };
    let mut at = 0;
    while at < text.len() {
        let (code, len) = decode_lenient(&text[at..]);
        at += len;
        let code = unicode::decomposed_base(code);
        let class = class_in(classes, code);
        if class & SPACE != 0 {
            finish(&mut word);
            continue;
        }
        if code == 0 || code == 0xFFFD || class & (CONTROL | MARK) != 0 || is_surrogate(code) {
            continue;
        }
        let alone =
            class & PUNCTUATION != 0 || code < 0x7F && class & SYMBOL != 0 || is_ideograph(code);
        if alone {
            finish(&mut word);
        }
        push_code(unicode::lower(code), &mut word);
        if alone {
            finish(&mut word);
        }
    }
    finish(&mut word);
    words
}

fn is_surrogate(code: u32) -> bool {
    matches!(code, 0xD800..=0xDFFF)
}

/// The CJK blocks that BERT's basic tokenizer sets apart.
fn is_ideograph(code: u32) -> bool {
    matches!(
        code,
        0x3400..=0x4DBF
            | 0x4E00..=0x9FFF
            | 0xF900..=0xFAFF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B81F
            | 0x2B820..=0x2CEAF
            | 0x2F800..=0x2FA1F
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        words(text.as_bytes())
            .into_iter()
            .map(|word| String::from_utf8(word).unwrap())
            .collect()
    }

    #[test]
    fn words_are_normalised_and_cut() {
        assert_eq!(
            split("  Héllo, WORLD\u{0}!x"),
            ["▁hello", "▁,", "▁world", "▁!", "▁x"]
        );
        assert_eq!(split("中文a+b"), ["▁中", "▁文", "▁a", "▁+", "▁b"]);
        assert_eq!(split("ne\u{301}e नमस्ते"), ["▁nee", "▁नमसत"]);
        assert_eq!(split(" \n "), [""; 0]);
    }

    #[test]
    fn longest_match_or_unknown() {
        let tokens = ["[UNK]", "▁un", "▁u", "aff", "able", "a"]
            .map(str::to_owned)
            .to_vec();
        let vocab = Vocab::new(tokens, None, None).unwrap();
        let model = WordPiece::new(&vocab, Some(0));
        let mut out = vec![];
        model.encode(b"unaffable unx U", &mut out);
        assert_eq!(out, [1, 3, 4, 0, 2]);
    }
}
