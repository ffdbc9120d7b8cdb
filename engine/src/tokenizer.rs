//! Tokenizers: text to token ids and back, as the model was trained.
//!
//! Four kinds of vocabulary (`tokenizer.ggml.model`) are read: `gpt2` (byte-level merges by rank, behind a
//! pre-tokenizer that `tokenizer.ggml.pre` names), `llama` (merges by score with byte fallback), `gemma4` (merges by rank
//! over characters) and `bert` (longest match in words). All of them first cut the text at special tokens.
//!
//! Text is bytes: invalid UTF-8 is tokenised too, never refused. Everything in the file is hostile until
//! [`Tokenizer::new`] has looked at it; after that no input can fail.

mod bpe;
mod pretokenizer;
mod special;
mod spm;
mod trie;
mod unicode;
mod vocab;
mod wordpiece;

use thiserror::Error;

use crate::gguf::{GgufError, Metadata, Value};
use bpe::Bpe;
use pretokenizer::Pretokenizer;
use special::{Fragment, SpecialTokens};
use spm::Spm;
use vocab::{BLANK_MARK, Kind, Spelling, Vocab, push_marked};
use wordpiece::WordPiece;

/// Texts of the token that ends a turn, most specific first; the first that exists is taken where the file names none.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// Texts that end generation wherever they occur in a vocabulary.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
];

/// Fill-in-the-middle tokens: key, texts where the file has no key, and whether the token ends generation.
const FILL_IN_MIDDLE: &[(&str, &[&str], bool)] = &[
    (
        "tokenizer.ggml.fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        true,
    ),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
        true,
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"], true),
];

/// What can be wrong with the tokenizer of a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata lack a key or hold another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// `tokenizer.ggml.model` names a kind that is not implemented.
    #[error("tokenizer model `{found}` is not supported (known: bert, gemma4, gpt2, llama)")]
    UnknownModel {
        /// What the file says.
        found: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented.
    #[error(
        "unknown pre-tokenizer `{found}`; if the model cuts text as one of the known ones does, \
         name it with --override-kv tokenizer.ggml.pre=str:NAME (known: {known})"
    )]
    UnknownPretokenizer {
        /// What the file says.
        found: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// The vocabulary is empty.
    #[error("tokenizer.ggml.tokens is empty; the file has no vocabulary")]
    Empty,
    /// More tokens than ids.
    #[error("tokenizer.ggml.tokens has {found} entries, more than token ids can count")]
    TooMany {
        /// Entries of the list.
        found: usize,
    },
    /// A list that belongs to the tokens has another length.
    #[error("{key} has {found} entries, expected one for each of the {expected} tokens")]
    Length {
        /// The list.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A list that this kind of tokenizer needs is missing.
    #[error("{key} is missing; a `{model}` tokenizer needs it")]
    Missing {
        /// The list.
        key: &'static str,
        /// Kind of tokenizer.
        model: &'static str,
    },
    /// A token text of absurd length.
    #[error("text of token {id} has {found} bytes, more than the limit of {limit}")]
    TokenTooLong {
        /// Token id.
        id: u32,
        /// Length of its text.
        found: usize,
        /// Longest accepted length.
        limit: usize,
    },
    /// A byte token that names no byte.
    #[error("byte token {id} is `{text}`, expected `<0xHH>` with two hexadecimal digits")]
    ByteToken {
        /// Token id.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A merge that cannot be split.
    #[error("merge {idx} is `{text}`, expected two parts with a blank between them")]
    Merge {
        /// Index in `tokenizer.ggml.merges`.
        idx: usize,
        /// The entry.
        text: String,
    },
    /// A special token outside the vocabulary.
    #[error("{key} is {found}, but the vocabulary has {n_vocab} tokens")]
    IdOutOfRange {
        /// Metadata key.
        key: &'static str,
        /// What it says.
        found: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
}

/// What a file says about its tokenizer, before anything is checked.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerData {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, `gemma4` or `bert`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// `general.name`; Phi-3 files are known by it.
    pub name: Option<String>,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`, "left right".
    pub merges: Option<Vec<String>>,
    /// Special token ids by metadata key, as [`TokenizerData::ID_KEYS`] lists them.
    pub ids: Vec<(&'static str, u32)>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

impl TokenizerData {
    /// The keys of special token ids that are read.
    pub const ID_KEYS: &'static [&'static str] = &[
        BOS,
        EOS,
        EOT,
        EOM,
        UNK,
        SEP,
        PAD,
        CLS,
        MASK,
        "tokenizer.ggml.fim_pre_token_id",
        "tokenizer.ggml.fim_suf_token_id",
        "tokenizer.ggml.fim_mid_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
    ];

    /// A tokenizer of the kind `model` with these tokens and nothing else said.
    pub fn new(model: &str, tokens: Vec<String>) -> Self {
        Self {
            model: model.to_owned(),
            pre: None,
            name: None,
            tokens,
            scores: None,
            token_types: None,
            merges: None,
            ids: vec![],
            add_bos: None,
            add_eos: None,
            add_sep: None,
            add_space_prefix: None,
        }
    }

    /// Collects the keys `tokenizer.ggml.*` of a file.
    ///
    /// # Errors
    /// A missing model or token list, or a value of the wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let owned = |value: Option<&str>| value.map(str::to_owned);
        let mut ids = vec![];
        for &key in Self::ID_KEYS {
            // Files say -1, in either signedness, for "there is none".
            if matches!(metadata.get(key), Some(Value::I32(..0) | Value::I64(..0))) {
                continue;
            }
            ids.extend(
                metadata
                    .opt_u32(key)?
                    .filter(|&id| id != u32::MAX)
                    .map(|id| (key, id)),
            );
        }
        Ok(Self {
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: owned(metadata.opt_str("tokenizer.ggml.pre")?),
            name: owned(metadata.opt_str("general.name")?),
            tokens: metadata.strings("tokenizer.ggml.tokens")?.to_vec(),
            scores: metadata.opt_f32s("tokenizer.ggml.scores")?,
            token_types: metadata.opt_i32s("tokenizer.ggml.token_type")?,
            merges: metadata.opt_strings(MERGES)?.map(<[String]>::to_vec),
            ids,
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.opt_bool("tokenizer.ggml.add_eos_token")?,
            add_sep: metadata.opt_bool("tokenizer.ggml.add_sep_token")?,
            add_space_prefix: metadata.opt_bool("tokenizer.ggml.add_space_prefix")?,
        })
    }

    fn id(&self, key: &str) -> Option<u32> {
        self.ids
            .iter()
            .find(|(known, _)| *known == key)
            .map(|&(_, id)| id)
    }
}

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNK: &str = "tokenizer.ggml.unknown_token_id";
/// The format spells it so.
const SEP: &str = "tokenizer.ggml.seperator_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
const CLS: &str = "tokenizer.ggml.cls_token_id";
const MASK: &str = "tokenizer.ggml.mask_token_id";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

/// Text to token ids and back.
///
/// ```
/// use gemel_engine::tokenizer::{Tokenizer, TokenizerData};
///
/// let mut data = TokenizerData::new("gpt2", ["a", "b", "ab", "<end>"].map(str::to_owned).to_vec());
/// data.pre = Some("gpt-2".to_owned());
/// data.merges = Some(vec!["a b".to_owned()]);
/// data.token_types = Some(vec![1, 1, 1, 3]);
/// let tokenizer = Tokenizer::new(data)?;
///
/// assert_eq!(tokenizer.encode("aba<end>", false, true), [2, 0, 3]);
/// assert_eq!(tokenizer.decode(&[2, 0, 3], false), b"aba");
/// # Ok::<(), gemel_engine::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocab: Vocab,
    specials: SpecialTokens,
    model: Model,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unk: Option<u32>,
    sep: Option<u32>,
    pad: Option<u32>,
    /// Sorted.
    eog: Vec<u32>,
    /// What follows the text when special tokens are added: the separator, the end of text, both or neither.
    suffix: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

#[derive(Debug, Clone)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
    WordPiece(WordPiece),
}

/// What the kind of a tokenizer implies where the file says nothing.
struct Defaults {
    spelling: Spelling,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    sep: Option<u32>,
    add_bos: bool,
    add_sep: bool,
}

impl Tokenizer {
    /// The tokenizer of a file.
    ///
    /// # Errors
    /// See [`TokenizerError`].
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::new(TokenizerData::from_metadata(metadata)?)
    }

    /// Checks `data` and builds the tables.
    ///
    /// # Errors
    /// See [`TokenizerError`].
    pub fn new(mut data: TokenizerData) -> Result<Self, TokenizerError> {
        let nothing = Defaults {
            spelling: Spelling::Marked,
            bos: None,
            eos: None,
            unk: None,
            sep: None,
            add_bos: false,
            add_sep: false,
        };
        let pretokenizer = match (data.model.as_str(), data.pre.as_deref()) {
            ("gpt2", Some(pre)) => {
                Pretokenizer::by_name(pre).ok_or_else(|| TokenizerError::UnknownPretokenizer {
                    found: pre.to_owned(),
                    known: Pretokenizer::names().collect::<Vec<_>>().join(", "),
                })?
            }
            ("gemma4", _) => Pretokenizer::lines(),
            _ => Pretokenizer::unnamed(),
        };
        let defaults = match data.model.as_str() {
            "gpt2" => Defaults {
                spelling: Spelling::ByteLevel,
                add_bos: pretokenizer.add_bos,
                ..nothing
            },
            "gemma4" => nothing,
            "llama" => Defaults {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                add_bos: true,
                ..nothing
            },
            "bert" => Defaults {
                bos: data.id(CLS).or(Some(101)),
                unk: Some(100),
                sep: Some(102),
                add_bos: true,
                add_sep: true,
                ..nothing
            },
            other => {
                return Err(TokenizerError::UnknownModel {
                    found: other.to_owned(),
                });
            }
        };
        let missing = |key, model| TokenizerError::Missing { key, model };
        match data.model.as_str() {
            "gpt2" if data.merges.is_none() => return Err(missing(MERGES, "gpt2")),
            "gemma4" if data.merges.is_none() => return Err(missing(MERGES, "gemma4")),
            "llama" if data.scores.is_none() => return Err(missing(SCORES, "llama")),
            _ => {}
        }

        let mut vocab = Vocab::new(
            std::mem::take(&mut data.tokens),
            data.scores.take(),
            data.token_types.as_deref(),
        )?;
        let n_vocab = vocab.len();
        for &(key, found) in &data.ids {
            if found as usize >= n_vocab {
                return Err(TokenizerError::IdOutOfRange {
                    key,
                    found,
                    n_vocab,
                });
            }
        }
        let id = |key, default: Option<u32>| {
            data.id(key)
                .or(default.filter(|&id| (id as usize) < n_vocab))
        };
        let eos = id(EOS, defaults.eos);
        let ends = Ends::find(&mut vocab, &data, eos);
        set_stripping(&mut vocab, &data);
        vocab.spell(defaults.spelling)?;

        let unk = id(UNK, defaults.unk);
        let model = match data.model.as_str() {
            "llama" => Model::Spm(Spm::new(&vocab, unk)),
            "bert" => Model::WordPiece(WordPiece::new(&vocab, unk)),
            _ => Model::Bpe(Bpe::new(
                &vocab,
                data.merges.as_deref().unwrap_or_default(),
                pretokenizer,
                defaults.spelling,
            )?),
        };
        let sep = id(SEP, defaults.sep);
        let add_sep = data.add_sep.unwrap_or(defaults.add_sep);
        let add_eos = data.add_eos.unwrap_or(false);
        let suffix = sep
            .filter(|_| add_sep)
            .into_iter()
            .chain(eos.filter(|_| add_eos))
            .collect();
        Ok(Self {
            specials: SpecialTokens::new(&vocab),
            bos: id(BOS, defaults.bos),
            eos,
            eot: ends.eot,
            eom: ends.eom,
            unk,
            sep,
            suffix,
            pad: id(PAD, None),
            eog: ends.eog,
            // Published gemma4 files say false and are wrong.
            add_bos: data.model == "gemma4" || data.add_bos.unwrap_or(defaults.add_bos),
            add_eos,
            add_space_prefix: data.model == "llama" && data.add_space_prefix.unwrap_or(true),
            vocab,
            model,
        })
    }

    /// Token ids of `text`.
    ///
    /// `add_special` adds the start and end tokens that the model wants. `parse_special` makes the text of control
    /// tokens stand for them: right for what a chat template wrote, wrong for what a user wrote. User-defined tokens
    /// are recognised in either case.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.encode_bytes(text.as_bytes(), add_special, parse_special)
    }

    /// As [`Self::encode`], for text that need not be valid UTF-8.
    pub fn encode_bytes(&self, text: &[u8], add_special: bool, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let mut after_special = true;
        let mut marked = vec![];
        for fragment in self.specials.partition(text, parse_special) {
            let text = match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_special = true;
                    continue;
                }
                Fragment::Text(text) => text,
            };
            match &self.model {
                Model::Bpe(bpe) => bpe.encode(&self.vocab, text, &mut ids),
                Model::WordPiece(word_piece) => word_piece.encode(text, &mut ids),
                Model::Spm(spm) => {
                    marked.clear();
                    if self.add_space_prefix && after_special {
                        marked.extend_from_slice(BLANK_MARK);
                    }
                    push_marked(text, &mut marked);
                    spm.encode(&self.vocab, &marked, &mut ids);
                }
            }
            after_special = false;
        }
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        ids
    }

    /// The bytes that token `id` writes, whatever its kind: the text of a control token, a blank for U+2581, one byte
    /// for a byte token. May end inside a UTF-8 sequence. `None` outside the vocabulary.
    ///
    /// A stream leaves out [control tokens](Self::is_control), and where [`Self::add_space_prefix`] holds, the blank
    /// that the first written token starts with.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.written(id)
    }

    /// The bytes that `ids` write. `special` includes control tokens. Ids outside the vocabulary write nothing.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut at_start = self.add_space_prefix;
        for &id in ids {
            if !special && self.is_control(id) {
                continue;
            }
            let written = self.vocab.written(id).unwrap_or_default();
            bytes.extend_from_slice(if at_start {
                written.strip_prefix(b" ").unwrap_or(written)
            } else {
                written
            });
            at_start &= written.is_empty();
        }
        bytes
    }

    /// As [`Self::decode`], with U+FFFD for what is not UTF-8.
    pub fn decode_lossy(&self, ids: &[u32], special: bool) -> String {
        String::from_utf8_lossy(&self.decode(ids, special)).into_owned()
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// The text of a token as the file spells it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.vocab.text(id)?).ok()
    }

    /// The token that the file spells so. Of several the last.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text.as_bytes())
    }

    /// Start of text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// End of turn.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// End of message: the model waits for a tool.
    pub fn eom(&self) -> Option<u32> {
        self.eom
    }

    /// Stands for what cannot be spelled.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Between two texts.
    pub fn sep(&self) -> Option<u32> {
        self.sep
    }

    /// Filler.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Whether generation ends at this token.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// The tokens at which generation ends, in ascending order.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// Whether the token is left out of decoded text: control tokens and the unknown token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab
            .kind(id)
            .is_some_and(|kind| kind.has(Kind::CONTROL.with(Kind::UNKNOWN)))
    }

    /// Whether [`Self::encode`] starts with [`Self::bos`] when asked to add special tokens.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether [`Self::encode`] ends with [`Self::eos`] when asked to add special tokens.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a blank is put in front of text, which decoding takes away again.
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }
}

/// The tokens that end something.
struct Ends {
    eot: Option<u32>,
    eom: Option<u32>,
    eog: Vec<u32>,
}

impl Ends {
    /// Finds them by key and by text, and makes those found by text control tokens: many files forget to say so.
    fn find(vocab: &mut Vocab, data: &TokenizerData, eos: Option<u32>) -> Self {
        let mut eog = vec![];
        let by_text = |vocab: &mut Vocab, text: &str| {
            let id = vocab.id(text.as_bytes())?;
            let kind = vocab.kind(id)?;
            vocab.set_kind(id, kind.with(Kind::CONTROL));
            Some(id)
        };
        let eot = data
            .id(EOT)
            .or_else(|| END_OF_TURN.iter().find_map(|text| by_text(vocab, text)));
        let eom = data.id(EOM).or_else(|| by_text(vocab, "<|eom_id|>"));
        for &(key, texts, ends_generation) in FILL_IN_MIDDLE {
            let id = data
                .id(key)
                .or_else(|| texts.iter().find_map(|text| by_text(vocab, text)));
            eog.extend(id.filter(|_| ends_generation));
        }
        for text in END_OF_GENERATION {
            eog.extend(by_text(vocab, text));
        }
        eog.extend([eos, eot, eom].into_iter().flatten());

        let find = |text: &str| vocab.id(text.as_bytes());
        if find("<|end|>").is_some() && find("<|return|>").is_some() && find("<|call|>").is_some() {
            // Harmony: `<|end|>` closes a message, and more of the same answer follows.
            let end = find("<|end|>");
            eog.retain(|&id| Some(id) != end || Some(id) == eos);
        }
        if let (Some(tag), Some(_)) = (find("</s>"), find("<|tool_response>")) {
            // Gemma 4: `</s>` is an HTML tag like its neighbours.
            if eos != Some(tag) {
                eog.retain(|&id| id != tag);
                vocab.set_kind(tag, Kind::NORMAL);
            }
        }
        eog.sort_unstable();
        eog.dedup();
        Self { eot, eom, eog }
    }
}

/// Marks the tokens that swallow blanks next to them, which no metadata key says.
fn set_stripping(vocab: &mut Vocab, data: &TokenizerData) {
    let masks: &[&str] = match data.pre.as_deref() {
        Some("jina-v2-de" | "jina-v2-es") => &["<mask>"],
        Some("modern-bert") => &["[MASK]"],
        _ => &[],
    };
    for text in masks {
        change_kind(vocab, text, |kind| kind.with(Kind::STRIPS_LEFT));
    }
    let name = data.name.as_deref().unwrap_or_default().to_lowercase();
    if name.contains("phi-3") || name.contains("phi3") {
        let special = Kind::CONTROL.with(Kind::UNKNOWN).with(Kind::USER_DEFINED);
        for id in 0..vocab.len() as u32 {
            if let Some(kind) = vocab.kind(id).filter(|kind| kind.has(special)) {
                vocab.set_kind(id, kind.with(Kind::STRIPS_RIGHT));
            }
        }
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            change_kind(vocab, text, |kind| kind.without(Kind::STRIPS_RIGHT));
        }
    }
}

fn change_kind(vocab: &mut Vocab, text: &str, change: impl Fn(Kind) -> Kind) {
    if let Some(id) = vocab.id(text.as_bytes())
        && let Some(kind) = vocab.kind(id)
    {
        vocab.set_kind(id, change(kind));
    }
}
