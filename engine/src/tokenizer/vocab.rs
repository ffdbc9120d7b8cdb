//! The list of tokens: text, kind, score, and what each token writes.

use std::collections::HashMap;
use std::sync::Arc;

use super::TokenizerError;

/// U+2581, which stands for a blank in every vocabulary that is not byte-level.
pub(super) const BLANK_MARK: &[u8] = "\u{2581}".as_bytes();

/// Longest token text that is accepted, in bytes. The longest published ones have a few hundred.
const MAX_TOKEN_BYTES: usize = 1 << 16;

/// What a token is; `tokenizer.ggml.token_type` as bits, because loading adds to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    pub(super) const NORMAL: Self = Self(1);
    pub(super) const UNKNOWN: Self = Self(1 << 1);
    pub(super) const CONTROL: Self = Self(1 << 2);
    pub(super) const USER_DEFINED: Self = Self(1 << 3);
    pub(super) const BYTE: Self = Self(1 << 4);
    /// Type 5 and everything that the format does not define: the token writes nothing.
    pub(super) const UNUSED: Self = Self(1 << 5);
    /// Blanks in front of the token belong to it.
    pub(super) const STRIPS_LEFT: Self = Self(1 << 6);
    /// Blanks behind the token belong to it.
    pub(super) const STRIPS_RIGHT: Self = Self(1 << 7);

    fn from_file(token_type: i32) -> Self {
        match token_type {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            6 => Self::BYTE,
            _ => Self::UNUSED,
        }
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// How token texts are written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Every byte as one printable character (GPT-2's table).
    ByteLevel,
    /// Plain text with U+2581 for blanks and `<0xHH>` for bytes.
    Marked,
}

/// All tokens of a model.
#[derive(Debug, Clone)]
pub(super) struct Vocab {
    texts: Vec<Arc<[u8]>>,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    ids: HashMap<Arc<[u8]>, u32>,
    /// What token `id` writes is `written[starts[id]..starts[id + 1]]`.
    written: Vec<u8>,
    starts: Vec<usize>,
    max_token_bytes: usize,
}

impl Vocab {
    /// Builds the list. Of tokens with the same text the last one answers to it; empty texts answer to nothing.
    ///
    /// # Errors
    /// No tokens, too many, a text that is too long, or lists of different lengths.
    pub(super) fn new(
        tokens: Vec<String>,
        scores: Option<Vec<f32>>,
        token_types: Option<&[i32]>,
    ) -> Result<Self, TokenizerError> {
        let n_vocab = tokens.len();
        if n_vocab == 0 {
            return Err(TokenizerError::Empty);
        }
        if u32::try_from(n_vocab).is_err() {
            return Err(TokenizerError::TooMany { found: n_vocab });
        }
        let check = |key, found: Option<usize>| match found {
            Some(found) if found != n_vocab => Err(TokenizerError::Length {
                key,
                found,
                expected: n_vocab,
            }),
            _ => Ok(()),
        };
        check("tokenizer.ggml.scores", scores.as_ref().map(Vec::len))?;
        check("tokenizer.ggml.token_type", token_types.map(<[i32]>::len))?;

        let mut texts = Vec::with_capacity(n_vocab);
        let mut ids = HashMap::with_capacity(n_vocab);
        let mut max_token_bytes = 0;
        for (id, text) in (0u32..).zip(tokens) {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(TokenizerError::TokenTooLong {
                    id,
                    found: text.len(),
                    limit: MAX_TOKEN_BYTES,
                });
            }
            max_token_bytes = max_token_bytes.max(text.len());
            let text: Arc<[u8]> = text.into_bytes().into();
            if !text.is_empty() {
                ids.insert(Arc::clone(&text), id);
            }
            texts.push(text);
        }
        let kinds = match token_types {
            Some(types) => types.iter().copied().map(Kind::from_file).collect(),
            None => vec![Kind::NORMAL; n_vocab],
        };
        Ok(Self {
            texts,
            kinds,
            scores: scores.unwrap_or_else(|| vec![0.0; n_vocab]),
            ids,
            written: vec![],
            starts: vec![],
            max_token_bytes,
        })
    }

    /// Works out what every token writes. Call once, after the last change of a kind.
    ///
    /// # Errors
    /// A byte token whose text is not `<0x` + two hexadecimal digits + `>`.
    pub(super) fn spell(&mut self, spelling: Spelling) -> Result<(), TokenizerError> {
        self.written.clear();
        self.starts.clear();
        for (id, (text, &kind)) in (0u32..).zip(self.texts.iter().zip(&self.kinds)) {
            self.starts.push(self.written.len());
            if kind.has(Kind::UNKNOWN.with(Kind::CONTROL).with(Kind::USER_DEFINED)) {
                self.written.extend_from_slice(text);
            } else if spelling == Spelling::Marked && kind.has(Kind::BYTE) {
                let byte = parse_byte_token(text).ok_or_else(|| TokenizerError::ByteToken {
                    id,
                    text: String::from_utf8_lossy(text).into_owned(),
                })?;
                self.written.push(byte);
            } else if kind.has(Kind::NORMAL) {
                match spelling {
                    Spelling::ByteLevel => push_byte_level(text, &mut self.written),
                    Spelling::Marked => push_unmarked(text, &mut self.written),
                }
            }
        }
        self.starts.push(self.written.len());
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Length of the longest token text.
    pub(super) fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    /// The text in the file.
    pub(super) fn text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id as usize).map(AsRef::as_ref)
    }

    /// What the token writes.
    pub(super) fn written(&self, id: u32) -> Option<&[u8]> {
        let idx = id as usize;
        self.written
            .get(*self.starts.get(idx)?..*self.starts.get(idx + 1)?)
    }

    /// The token with this text.
    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The token `<0xHH>`.
    pub(super) fn byte_id(&self, byte: u8) -> Option<u32> {
        self.id(format!("<0x{byte:02X}>").as_bytes())
    }

    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Kind)> {
        (0u32..)
            .zip(self.texts.iter().zip(&self.kinds))
            .map(|(id, (text, &kind))| (id, text.as_ref(), kind))
    }
}

/// GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and following.
pub(super) fn byte_level_char(byte: u8) -> char {
    let shifted = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => return char::from(byte),
        0x00..=0x20 => u32::from(byte),
        0x7F..=0xA0 => 0x21 + u32::from(byte - 0x7F),
        0xAD => 0x43,
    };
    char::from_u32(0x100 + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a character of GPT-2's table stands for.
fn byte_level_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Appends the bytes that a byte-level text stands for. Characters outside the table stay as they are.
fn push_byte_level(text: &[u8], out: &mut Vec<u8>) {
    for c in String::from_utf8_lossy(text).chars() {
        match byte_level_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Appends `text` with U+2581 turned back into blanks.
fn push_unmarked(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(&first) = rest.first() {
        if let Some(after) = rest.strip_prefix(BLANK_MARK) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(first);
            rest = &rest[1..];
        }
    }
}

/// Appends `text` with blanks turned into U+2581.
pub(super) fn push_marked(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if byte == b' ' {
            out.extend_from_slice(BLANK_MARK);
        } else {
            out.push(byte);
        }
    }
}

fn parse_byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_table_is_a_bijection_of_printable_characters() {
        let mut seen = std::collections::BTreeSet::new();
        for byte in 0..=u8::MAX {
            let c = byte_level_char(byte);
            assert!(!c.is_whitespace() && !c.is_control(), "{byte} -> {c:?}");
            assert!(seen.insert(c), "{c} twice");
            assert_eq!(byte_level_byte(c), Some(byte));
        }
        assert_eq!(byte_level_char(b' '), 'Ġ');
        assert_eq!(byte_level_char(b'\n'), 'Ċ');
        assert_eq!(byte_level_char(0xAD), 'Ń');
    }

    #[test]
    fn byte_tokens_need_two_digits() {
        assert_eq!(parse_byte_token(b"<0x0A>"), Some(10));
        assert_eq!(parse_byte_token(b"<0xff>"), Some(255));
        for bad in ["<0xA>", "<0x0AB>", "<0xGG>", "<0x+1>", "0x0A", "<0x0A", ""] {
            assert_eq!(parse_byte_token(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn blank_marks_come_and_go() {
        let mut marked = vec![];
        push_marked(b" a  b", &mut marked);
        assert_eq!(marked, "▁a▁▁b".as_bytes());
        let mut plain = vec![];
        push_unmarked(&marked, &mut plain);
        assert_eq!(plain, b" a  b");
    }
}
