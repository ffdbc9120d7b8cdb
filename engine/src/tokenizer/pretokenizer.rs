//! Pre-tokenizers: where byte-pair merging may not cross.
//!
//! A model's tokenizer was trained on text cut by regular expressions, and must be fed text cut in the same way.
//! `tokenizer.ggml.pre` names the cut. Each name stands for one or more rules applied in turn: every rule cuts every
//! piece that the rules before it left, and what a rule does not match between two matches is a piece too.
//!
//! The rules are matched by hand rather than by a regex engine, because the patterns need look-ahead (`\s+(?!\S)`),
//! and because a matcher of ours has no step limit and is linear in the text. The pattern stands above each matcher.

use std::ops::Range;

use super::unicode::{
    self, LETTER, LOWER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, UPPER, decode_lenient,
};

/// The names that [`Pretokenizer::by_name`] knows, with what they stand for.
const NAMES: &[(&str, Pretokenizer)] = &[
    ("a.x-4.0", GPT2),
    ("bailingmoe", BAILINGMOE),
    ("bailingmoe2", BAILINGMOE),
    ("bloom", BLOOM),
    ("chatglm-bpe", LLAMA3),
    ("codeshell", SINGLE_DIGITS_GPT2),
    ("command-r", SINGLE_DIGITS_GPT2),
    ("dbrx", LLAMA3),
    ("deepseek-coder", DEEPSEEK_CODER),
    ("deepseek-llm", DEEPSEEK_LLM),
    ("deepseek-r1-qwen", QWEN2),
    ("deepseek-v3", DEEPSEEK_V3),
    ("default", DEFAULT),
    ("exaone", SINGLE_DIGITS_GPT2),
    ("exaone4", GPT2),
    ("f2llmv2", QWEN2),
    ("falcon", FALCON),
    ("falcon-h1", LLAMA3_WHOLE),
    ("falcon3", LLAMA3_WHOLE),
    ("gigachat", GPT2),
    ("glm4", LLAMA3),
    ("gpt-2", GPT2),
    ("gpt-4o", GPT4O),
    ("gpt3-finnish", BLOOM),
    ("granite-docling", GPT2),
    ("grok-2", QWEN2),
    ("hunyuan", QWEN2),
    ("hunyuan-dense", DEEPSEEK_V3),
    ("jais", GPT2),
    ("jina-de", GPT2),
    ("jina-es", GPT2),
    ("jina-v2-de", GPT2),
    ("jina-v2-es", GPT2),
    ("jina-v5-nano", LLAMA3_WHOLE),
    ("joyai-llm", DEEPSEEK_V3),
    ("kanana2", GPT4O),
    ("kormo", QWEN2),
    ("lfm2", LLAMA3_WHOLE),
    ("llada-moe", BAILINGMOE),
    ("llama-bpe", LLAMA3_WHOLE),
    ("llama-v3", LLAMA3_WHOLE),
    ("llama3", LLAMA3_WHOLE),
    ("llama4", GPT4O),
    ("megrez", QWEN2),
    ("mellum", GPT2),
    ("midm-2.0", LLAMA3_WHOLE),
    ("minerva-7b", SINGLE_DIGITS_GPT2),
    ("minimax-m2", GPT4O),
    ("modern-bert", GPT2),
    ("mpt", GPT2),
    ("olmo", GPT2),
    ("phi-2", GPT2),
    ("pixtral", LLAMA3_WHOLE),
    ("poro-chat", BLOOM),
    ("qwen2", QWEN2),
    ("qwen35", QWEN35),
    ("refact", SINGLE_DIGITS_GPT2),
    ("seed-coder", SEED_CODER),
    ("smaug-bpe", LLAMA3),
    ("smollm", SINGLE_DIGITS_GPT2),
    ("solar-open", QWEN2),
    ("stablelm2", QWEN2),
    ("starcoder", SINGLE_DIGITS_GPT2),
    ("tekken", TEKKEN),
    ("trillion", GPT2),
    ("viking", VIKING),
];

/// A named way to cut text, and what else the name implies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pretokenizer {
    rules: &'static [Rule],
    /// A piece that is a vocabulary entry as a whole is taken without merging.
    pub(super) whole_word_first: bool,
    /// Whether a start token is added when the file does not say.
    pub(super) add_bos: bool,
}

impl Pretokenizer {
    /// Looks a value of `tokenizer.ggml.pre` up.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let found = NAMES
            .binary_search_by(|(known, _)| (*known).cmp(name))
            .ok()?;
        Some(NAMES[found].1)
    }

    /// What a byte-level vocabulary gets whose file names no pre-tokenizer.
    pub(super) fn unnamed() -> Self {
        DEFAULT
    }

    /// The line cut of `gemma4`: runs of newlines and runs of anything else.
    pub(super) fn lines() -> Self {
        LINES
    }

    /// All known names, in alphabetical order.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Cuts `text` and returns the byte ranges of the pieces, in order, without gaps. No piece is empty.
    pub(super) fn split(self, text: &[u8]) -> Vec<Range<usize>> {
        let decoded = Decoded::new(text);
        let mut ends = if decoded.codes.is_empty() {
            vec![]
        } else {
            vec![decoded.codes.len()]
        };
        for rule in self.rules {
            ends = cut(rule, &decoded, &ends);
        }
        let mut start = 0;
        let mut pieces = Vec::with_capacity(ends.len());
        for end in ends {
            let end = decoded.offsets[end];
            pieces.push(start..end);
            start = end;
        }
        pieces
    }
}

const DEFAULT: Pretokenizer = of(&[
    Rule::Run(DEFAULT_PUNCTUATION),
    Rule::Gpt2,
    Rule::Run(NUMBERS),
    Rule::Run(THREE_DIGITS),
]);
const FALCON: Pretokenizer = of(&[
    Rule::Run(FALCON_PUNCTUATION),
    Rule::Gpt2,
    Rule::Run(THREE_DIGITS),
]);
const GPT2: Pretokenizer = of(&[Rule::Gpt2]);
const SINGLE_DIGITS_GPT2: Pretokenizer = of(&[Rule::Run(ONE_NUMBER), Rule::Gpt2]);
const LLAMA3: Pretokenizer = of(&[Rule::Words(WORDS)]);
const LLAMA3_WHOLE: Pretokenizer = Pretokenizer {
    whole_word_first: true,
    add_bos: true,
    ..LLAMA3
};
const QWEN2: Pretokenizer = of(&[Rule::Words(Words {
    max_digits: 1,
    ..WORDS
})]);
const QWEN35: Pretokenizer = of(&[Rule::Words(Words {
    max_digits: 1,
    word: LETTER | MARK,
    ..WORDS
})]);
const BAILINGMOE: Pretokenizer = of(&[Rule::Words(Words {
    max_digits: 1,
    newlines: Newlines::UpToOne,
    ..WORDS
})]);
const SEED_CODER: Pretokenizer = of(&[Rule::Words(Words {
    max_digits: 1,
    after_punctuation: Tail::None,
    ..WORDS
})]);
const GPT4O: Pretokenizer = of(&[Rule::Cased(Cased {
    contractions: true,
    max_digits: 3,
})]);
const TEKKEN: Pretokenizer = Pretokenizer {
    whole_word_first: true,
    add_bos: true,
    ..of(&[Rule::Cased(Cased {
        contractions: false,
        max_digits: 1,
    })])
};
const DEEPSEEK_CODER: Pretokenizer = of(&[
    Rule::Run(ONE_NEWLINE),
    Rule::Run(SPACED_LETTERS),
    Rule::Run(SPACED_PUNCTUATION),
    Rule::Run(DEEPSEEK_CJK),
    Rule::Run(ONE_NUMBER),
]);
const DEEPSEEK_LLM: Pretokenizer = of(&[
    Rule::Run(ONE_NEWLINE),
    Rule::Run(DEEPSEEK_LETTERS),
    Rule::Run(DEEPSEEK_PUNCTUATION),
    Rule::TrailingSpace,
    Rule::Run(DEEPSEEK_CJK),
    Rule::Run(NUMBERS),
]);
const DEEPSEEK_V3: Pretokenizer = of(&[
    Rule::Run(THREE_NUMBERS),
    Rule::Run(DEEPSEEK_V3_CJK),
    Rule::DeepSeekV3,
]);
const BLOOM: Pretokenizer = of(&[Rule::Run(BLOOM_WORDS)]);
const VIKING: Pretokenizer = of(&[Rule::Run(BLOOM_WORDS), Rule::Run(ONE_NUMBER)]);
const LINES: Pretokenizer = of(&[Rule::Run(NEWLINES)]);

const fn of(rules: &'static [Rule]) -> Pretokenizer {
    Pretokenizer {
        rules,
        whole_word_first: false,
        add_bos: false,
    }
}

/// One pattern.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Run(Run),
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    Words(Words),
    Cased(Cased),
    /// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
    DeepSeekV3,
    /// `\s+$`, the end being that of the piece
    TrailingSpace,
}

/// `L?X{min,max}`: a run of one set of code points, perhaps with one code point of another set in front.
#[derive(Debug, Clone, Copy)]
struct Run {
    lead: Lead,
    member: fn(u32, u16) -> bool,
    min: usize,
    max: usize,
}

/// What may stand in front of a run, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    None,
    /// U+0020
    Blank,
    /// `\s`
    Space,
}

const ANY: usize = usize::MAX;
const NUMBERS: Run = Run {
    lead: Lead::None,
    member: |_, class| class & NUMBER != 0,
    min: 1,
    max: ANY,
};
const ONE_NUMBER: Run = Run { max: 1, ..NUMBERS };
const THREE_NUMBERS: Run = Run { max: 3, ..NUMBERS };
const THREE_DIGITS: Run = Run {
    lead: Lead::None,
    member: |code, _| is_digit(code),
    min: 3,
    max: 3,
};
const NEWLINES: Run = Run {
    lead: Lead::None,
    member: |code, _| code == 0x0A,
    min: 1,
    max: ANY,
};
const ONE_NEWLINE: Run = Run {
    lead: Lead::None,
    member: |code, _| is_newline(code),
    min: 1,
    max: 1,
};
const SPACED_LETTERS: Run = Run {
    lead: Lead::Space,
    member: |_, class| class & LETTER != 0,
    min: 1,
    max: ANY,
};
const SPACED_PUNCTUATION: Run = Run {
    lead: Lead::Space,
    member: |_, class| class & PUNCTUATION != 0,
    min: 1,
    max: ANY,
};
/// `[\p{P}\$\+<=>\^~\|]+`
const DEFAULT_PUNCTUATION: Run = Run {
    lead: Lead::None,
    member: |code, class| class & PUNCTUATION != 0 || is_one_of(code, "$+<=>^~|"),
    min: 1,
    max: ANY,
};
/// ``[\p{P}\$\+<=>\^~\|`]+``
const FALCON_PUNCTUATION: Run = Run {
    member: |code, class| class & PUNCTUATION != 0 || is_one_of(code, "$+<=>^~|`"),
    ..DEFAULT_PUNCTUATION
};
/// ` ?[^(\s|.,!?…。，、।۔،)]+`
const BLOOM_WORDS: Run = Run {
    lead: Lead::Blank,
    member: |code, class| class & SPACE == 0 && !is_one_of(code, "(|.,!?…。，、।۔،)"),
    min: 1,
    max: ANY,
};
/// `[一-龥ࠀ-一가-퟿]+`
const DEEPSEEK_CJK: Run = Run {
    lead: Lead::None,
    member: |code, _| matches!(code, 0x0800..=0x9FA5 | 0xAC00..=0xD7FF),
    min: 1,
    max: ANY,
};
/// `[一-龥぀-ゟ゠-ヿ]+`
const DEEPSEEK_V3_CJK: Run = Run {
    lead: Lead::None,
    member: |code, _| matches!(code, 0x4E00..=0x9FA5 | 0x3040..=0x30FF),
    min: 1,
    max: ANY,
};
/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
const DEEPSEEK_PUNCTUATION: Run = Run {
    lead: Lead::Space,
    member: |code, _| matches!(code, 0x21..=0x2F | 0x3A..=0x7E | 0xFF01..=0xFF0F | 0xFF1A..=0xFF5E | 0x2018..=0x201F | 0x3000..=0x3002),
    min: 1,
    max: ANY,
};
/// `\s?[A-Za-zµÀ-Ö...]+`: the bicameral letters that the model's authors listed.
const DEEPSEEK_LETTERS: Run = Run {
    lead: Lead::Space,
    member: |code, _| is_deepseek_letter(code),
    min: 1,
    max: ANY,
};

/// The family of patterns that came with GPT-4 and Llama 3:
///
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,max}| ?[^\s\p{N}W]+T*|\s*[\r\n]+|\s+(?!\S)|\s+`
///
/// with W = `word` and T = `after_punctuation`.
#[derive(Debug, Clone, Copy)]
struct Words {
    word: u16,
    max_digits: usize,
    after_punctuation: Tail,
    newlines: Newlines,
}

const WORDS: Words = Words {
    word: LETTER,
    max_digits: 3,
    after_punctuation: Tail::Newlines,
    newlines: Newlines::All,
};

/// What a run of punctuation takes along behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    None,
    /// `[\r\n]*`
    Newlines,
    /// `[\r\n/]*`
    NewlinesAndSlashes,
}

/// How white space with line ends is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newlines {
    /// Not at all: the alternative is missing.
    Unseen,
    /// `\s*[\r\n]+`
    All,
    /// `\s*[\r\n]`
    UpToOne,
}

/// The patterns that tell upper from lower case, with U = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, L = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
/// and C = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?` where `contractions`:
///
/// `[^\r\n\p{L}\p{N}]?U*L+C|[^\r\n\p{L}\p{N}]?U+L*C|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Debug, Clone, Copy)]
struct Cased {
    contractions: bool,
    max_digits: usize,
}

/// A text as code points, with the byte offset and the class bits of each.
struct Decoded {
    codes: Vec<u32>,
    classes: Vec<u16>,
    /// One longer than `codes`: the last entry is the length of the text.
    offsets: Vec<usize>,
}

impl Decoded {
    fn new(text: &[u8]) -> Self {
        let table = unicode::classes();
        let mut decoded = Self {
            codes: Vec::with_capacity(text.len()),
            classes: Vec::with_capacity(text.len()),
            offsets: vec![],
        };
        let mut at = 0;
        while at < text.len() {
            let (code, len) = decode_lenient(&text[at..]);
            decoded.codes.push(code);
            decoded.classes.push(unicode::class_in(table, code));
            decoded.offsets.push(at);
            at += len;
        }
        decoded.offsets.push(text.len());
        decoded
    }
}

/// One piece of the text while a rule cuts it; rules cannot look beyond its ends.
#[derive(Clone, Copy)]
struct Piece<'a> {
    codes: &'a [u32],
    classes: &'a [u16],
}

impl Piece<'_> {
    fn len(self) -> usize {
        self.codes.len()
    }

    fn has(self, at: usize, class: u16) -> bool {
        self.classes.get(at).is_some_and(|found| found & class != 0)
    }

    fn is(self, at: usize, member: impl Fn(u32) -> bool) -> bool {
        self.codes.get(at).is_some_and(|&code| member(code))
    }

    /// End of the run of `member` that starts at `at`, at most `max` long.
    fn run(self, at: usize, max: usize, member: impl Fn(u32, u16) -> bool) -> usize {
        let limit = at.saturating_add(max).min(self.len());
        let mut end = at;
        while end < limit && member(self.codes[end], self.classes[end]) {
            end += 1;
        }
        end
    }

    /// End of the run of code points of `class` that starts at `at`.
    fn class_run(self, at: usize, class: u16) -> usize {
        self.run(at, ANY, |_, found| found & class != 0)
    }
}

/// Applies one rule to every piece.
fn cut(rule: &Rule, text: &Decoded, ends: &[usize]) -> Vec<usize> {
    let mut cuts = Vec::with_capacity(ends.len() * 2);
    let mut start = 0;
    for &end in ends {
        let piece = Piece {
            codes: &text.codes[start..end],
            classes: &text.classes[start..end],
        };
        let mut at = 0;
        let mut unmatched = 0;
        while at < piece.len() {
            match rule.find(piece, at) {
                Ok(to) => {
                    if unmatched < at {
                        cuts.push(start + at);
                    }
                    cuts.push(start + to);
                    at = to;
                    unmatched = to;
                }
                Err(next) => at = next,
            }
        }
        if unmatched < piece.len() {
            cuts.push(end);
        }
        start = end;
    }
    cuts
}

impl Rule {
    /// The end of the match that starts at `at`, else the next place where a match may start.
    /// `at` is inside the piece; both results are greater than it.
    fn find(&self, piece: Piece<'_>, at: usize) -> Result<usize, usize> {
        let end = match self {
            Self::Run(run) => run.end(piece, at),
            Self::Gpt2 => gpt2_end(piece, at),
            Self::Words(words) => words.end(piece, at),
            Self::Cased(cased) => cased.end(piece, at),
            Self::DeepSeekV3 => deepseek_v3_end(piece, at),
            Self::TrailingSpace => {
                // Skipping the whole run keeps long runs of blanks linear.
                let end = piece.class_run(at, SPACE);
                return if end > at && end == piece.len() {
                    Ok(end)
                } else {
                    Err(end.max(at + 1))
                };
            }
        };
        if end > at { Ok(end) } else { Err(at + 1) }
    }
}

impl Run {
    fn end(self, piece: Piece<'_>, at: usize) -> usize {
        let led = match self.lead {
            Lead::None => false,
            Lead::Blank => piece.is(at, is_blank),
            Lead::Space => piece.has(at, SPACE),
        };
        if led {
            let end = piece.run(at + 1, self.max, self.member);
            if end >= at + 1 + self.min {
                return end;
            }
        }
        let end = piece.run(at, self.max, self.member);
        if end >= at + self.min { end } else { at }
    }
}

fn gpt2_end(piece: Piece<'_>, at: usize) -> usize {
    let end = contraction_end(piece, at, |code| code);
    if end > at {
        return end;
    }
    let from = at + usize::from(piece.is(at, is_blank));
    for class in [LETTER, NUMBER] {
        if piece.has(from, class) {
            return piece.class_run(from, class);
        }
    }
    let end = piece.run(from, ANY, |_, class| class & (SPACE | LETTER | NUMBER) == 0);
    if end > from {
        end
    } else {
        white_space_end(piece, at, Newlines::Unseen)
    }
}

impl Words {
    fn end(self, piece: Piece<'_>, at: usize) -> usize {
        let end = contraction_end(piece, at, ascii_lower);
        if end > at {
            return end;
        }
        if may_lead_word(piece, at) && piece.has(at + 1, self.word) {
            return piece.class_run(at + 1, self.word);
        }
        if piece.has(at, self.word) {
            return piece.class_run(at, self.word);
        }
        if piece.has(at, NUMBER) {
            return piece.run(at, self.max_digits, |_, class| class & NUMBER != 0);
        }
        let end = punctuation_end(piece, at, self.word, self.after_punctuation);
        if end > at {
            end
        } else {
            white_space_end(piece, at, self.newlines)
        }
    }
}

impl Cased {
    fn end(self, piece: Piece<'_>, at: usize) -> usize {
        // The order of the alternatives shows where a mark could be the code point in front or the word itself.
        let starts = if may_lead_word(piece, at) {
            [at + 1, at]
        } else {
            [at, at]
        };
        let lowers = starts.iter().find_map(|&from| lower_word_end(piece, from));
        let word = lowers.or_else(|| starts.iter().find_map(|&from| upper_word_end(piece, from)));
        if let Some(end) = word {
            return if self.contractions {
                contraction_end(piece, end, ascii_lower)
            } else {
                end
            };
        }
        if piece.has(at, NUMBER) {
            return piece.run(at, self.max_digits, |_, class| class & NUMBER != 0);
        }
        let end = punctuation_end(piece, at, LETTER, Tail::NewlinesAndSlashes);
        if end > at {
            end
        } else {
            white_space_end(piece, at, Newlines::All)
        }
    }
}

/// U of [`Cased`].
fn is_upper(_: u32, class: u16) -> bool {
    class & (LETTER | MARK) != 0 && class & LOWER == 0
}

/// L of [`Cased`].
fn is_lower(_: u32, class: u16) -> bool {
    class & (LETTER | MARK) != 0 && class & UPPER == 0
}

/// `U*L+` (see [`Cased`])
fn lower_word_end(piece: Piece<'_>, from: usize) -> Option<usize> {
    let uppers_end = piece.run(from, ANY, is_upper);
    let lowers_end = piece.run(uppers_end, ANY, is_lower);
    if lowers_end > uppers_end {
        return Some(lowers_end);
    }
    // U and L share the caseless letters and the marks: U* gives back the last of them.
    (from..uppers_end)
        .rev()
        .find(|&at| is_lower(0, piece.classes[at]))
        .map(|at| at + 1)
}

/// `U+L*` where `U*L+` does not match, so that L* is empty.
fn upper_word_end(piece: Piece<'_>, from: usize) -> Option<usize> {
    let end = piece.run(from, ANY, is_upper);
    (end > from).then_some(end)
}

fn deepseek_v3_end(piece: Piece<'_>, at: usize) -> usize {
    let is_ascii_letter =
        |code: u32| u8::try_from(code).is_ok_and(|byte| byte.is_ascii_alphabetic());
    if piece.is(at, |code| {
        u8::try_from(code).is_ok_and(|byte| byte.is_ascii_punctuation())
    }) {
        let end = piece.run(at + 1, ANY, |code, _| is_ascii_letter(code));
        if end > at + 1 {
            return end;
        }
    }
    let word = LETTER | MARK;
    if !piece.has(at, LETTER | PUNCTUATION | SYMBOL)
        && !piece.is(at, is_newline)
        && piece.has(at + 1, word)
    {
        return piece.class_run(at + 1, word);
    }
    if piece.has(at, word) {
        return piece.class_run(at, word);
    }
    let from = at + usize::from(piece.is(at, is_blank));
    let end = piece.class_run(from, PUNCTUATION | SYMBOL);
    if end > from {
        return piece.run(end, ANY, |code, _| is_newline(code));
    }
    white_space_end(piece, at, Newlines::All)
}

/// `'s|'t|'re|'ve|'m|'ll|'d` after `fold`; `at` where none of them stands.
fn contraction_end(piece: Piece<'_>, at: usize, fold: impl Fn(u32) -> u32) -> usize {
    if !piece.is(at, |code| code == u32::from('\'')) {
        return at;
    }
    let letter = |idx: usize| {
        piece
            .codes
            .get(idx)
            .and_then(|&code| char::from_u32(fold(code)))
    };
    match (letter(at + 1), letter(at + 2)) {
        (Some('s' | 't' | 'm' | 'd'), _) => at + 2,
        (Some('r' | 'v'), Some('e')) | (Some('l'), Some('l')) => at + 3,
        _ => at,
    }
}

/// `[^\r\n\p{L}\p{N}]`
fn may_lead_word(piece: Piece<'_>, at: usize) -> bool {
    !piece.has(at, LETTER | NUMBER) && !piece.is(at, is_newline)
}

/// ` ?[^\s\p{N}W]+T*`; `at` where it does not match.
fn punctuation_end(piece: Piece<'_>, at: usize, word: u16, tail: Tail) -> usize {
    let from = at + usize::from(piece.is(at, is_blank));
    // Without a tail the class of that pattern leaves line ends out, which white space covers already.
    let end = piece.run(from, ANY, |_, class| class & (SPACE | NUMBER | word) == 0);
    if end == from {
        return at;
    }
    match tail {
        Tail::None => end,
        Tail::Newlines => piece.run(end, ANY, |code, _| is_newline(code)),
        Tail::NewlinesAndSlashes => piece.run(end, ANY, |code, _| {
            is_newline(code) || code == u32::from('/')
        }),
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first as `newlines` says; `at` where no white space stands.
fn white_space_end(piece: Piece<'_>, at: usize, newlines: Newlines) -> usize {
    let end = piece.class_run(at, SPACE);
    let line_end = match newlines {
        Newlines::Unseen => None,
        // `\s*` takes the line ends too and gives back the last one.
        Newlines::All | Newlines::UpToOne => {
            (at..end).rev().find(|&idx| is_newline(piece.codes[idx]))
        }
    };
    if let Some(idx) = line_end {
        return idx + 1;
    }
    // A run before a visible character leaves its last member to the next match.
    if end < piece.len() && end > at + 1 {
        end - 1
    } else {
        end
    }
}

fn is_blank(code: u32) -> bool {
    code == 0x20
}

fn is_newline(code: u32) -> bool {
    matches!(code, 0x0A | 0x0D)
}

fn is_digit(code: u32) -> bool {
    matches!(code, 0x30..=0x39)
}

fn ascii_lower(code: u32) -> u32 {
    if matches!(code, 0x41..=0x5A) {
        code + 0x20
    } else {
        code
    }
}

fn is_one_of(code: u32, set: &str) -> bool {
    set.chars().any(|c| u32::from(c) == code)
}

/// The letters that `deepseek-llm` keeps together: those with case in Latin, Greek, Cyrillic and a few more scripts.
fn is_deepseek_letter(code: u32) -> bool {
    const RANGES: &[(char, char)] = &[
        ('A', 'Z'),
        ('a', 'z'),
        ('µ', 'µ'),
        ('À', 'Ö'),
        ('Ø', 'ö'),
        ('ø', 'ƺ'),
        ('Ƽ', 'ƿ'),
        ('Ǆ', 'ʓ'),
        ('ʕ', 'ʯ'),
        ('Ͱ', 'ͳ'),
        ('Ͷ', 'ͷ'),
        ('ͻ', 'ͽ'),
        ('Ϳ', 'Ϳ'),
        ('Ά', 'Ά'),
        ('Έ', 'Ί'),
        ('Ό', 'Ό'),
        ('Ύ', 'Ρ'),
        ('Σ', 'ϵ'),
        ('Ϸ', 'ҁ'),
        ('Ҋ', 'ԯ'),
        ('Ա', 'Ֆ'),
        ('Ⴀ', 'Ⴥ'),
        ('Ꭰ', 'Ᏽ'),
        ('ᏸ', 'ᏽ'),
        ('Ა', 'Ჺ'),
        ('Ჽ', 'Ჿ'),
        ('ᴀ', 'ᴫ'),
        ('ᵫ', 'ᵷ'),
        ('ᵹ', 'ᶚ'),
        ('Ḁ', 'ἕ'),
        ('Ἐ', 'Ἕ'),
        ('ἠ', 'ὅ'),
        ('Ὀ', 'Ὅ'),
        ('ὐ', 'ὗ'),
        ('Ὑ', 'Ὑ'),
        ('Ὓ', 'Ὓ'),
        ('Ὕ', 'Ὕ'),
        ('Ὗ', 'ώ'),
        ('ᾀ', 'ᾴ'),
        ('ᾶ', 'ᾼ'),
        ('\u{1FBE}', '\u{1FBE}'),
        ('ῂ', 'ῄ'),
        ('ῆ', 'ῌ'),
        ('ῐ', 'ΐ'),
        ('ῖ', 'Ί'),
        ('ῠ', 'Ῥ'),
        ('ῲ', 'ῴ'),
        ('ῶ', 'ῼ'),
        ('ℂ', 'ℂ'),
        ('ℇ', 'ℇ'),
        ('ℊ', 'ℓ'),
        ('ℕ', 'ℕ'),
        ('ℙ', 'ℝ'),
        ('ℤ', 'ℤ'),
        ('\u{2126}', '\u{2126}'),
        ('ℨ', 'ℨ'),
        ('\u{212A}', 'ℭ'),
        ('ℯ', 'ℴ'),
        ('ℹ', 'ℹ'),
        ('ℼ', 'ℿ'),
        ('ⅅ', 'ⅉ'),
        ('ⅎ', 'ⅎ'),
        ('Ↄ', 'ↄ'),
        ('Ⰰ', 'ⱻ'),
        ('Ȿ', 'ⳤ'),
        ('Ⳬ', 'ⳮ'),
        ('Ⳳ', 'ⳳ'),
        ('Ꙁ', 'ꙭ'),
        ('Ꚁ', 'ꚛ'),
        ('Ꜣ', 'ꝯ'),
        ('ꝱ', 'ꞇ'),
        ('Ꞌ', 'ꞎ'),
        ('ꭰ', 'ꮿ'),
        ('ﬀ', 'ﬆ'),
        ('ﬓ', 'ﬗ'),
        ('Ａ', 'Ｚ'),
        ('ａ', 'ｚ'),
        ('𐐀', '𐑏'),
        ('𐒰', '𐓓'),
        ('𐓘', '𐓻'),
        ('𐲀', '𐲲'),
        ('𐳀', '𐳲'),
        ('𑢠', '𑣟'),
        ('𞤀', '𞥃'),
    ];
    RANGES
        .iter()
        .any(|&(first, last)| (u32::from(first)..=u32::from(last)).contains(&code))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn pieces<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let pretokenizer = Pretokenizer::by_name(name).unwrap();
        pretokenizer
            .split(text.as_bytes())
            .into_iter()
            .map(|range| &text[range])
            .collect()
    }

    #[test]
    fn names_are_sorted() {
        assert!(
            NAMES.is_sorted_by(|a, b| a.0 < b.0),
            "binary search needs it"
        );
        assert!(
            Pretokenizer::by_name("nonsense").is_none(),
            "unknown names are not guessed"
        );
    }

    #[test]
    fn the_last_blank_before_a_word_belongs_to_it() {
        assert_eq!(
            pieces("gpt-2", "a   b  \n c "),
            ["a", "  ", " b", "  \n", " c", " "]
        );
        assert_eq!(
            pieces("llama-bpe", "a   b  \n c "),
            ["a", "  ", " b", "  \n", " c", " "]
        );
        assert_eq!(pieces("gpt-2", "a\nb"), ["a", "\n", "b"]);
    }

    #[test]
    fn contractions() {
        assert_eq!(
            pieces("gpt-2", "I'm YOU'RE we'll 'x"),
            ["I", "'m", " YOU", "'", "RE", " we", "'ll", " '", "x"]
        );
        assert_eq!(
            pieces("llama-bpe", "I'm YOU'RE 'x"),
            ["I", "'m", " YOU", "'RE", " '", "x"]
        );
    }

    #[test]
    fn digits_go_by_the_rule() {
        assert_eq!(pieces("gpt-2", "x 12345"), ["x", " 12345"]);
        assert_eq!(pieces("llama-bpe", "x 12345"), ["x", " ", "123", "45"]);
        assert_eq!(pieces("qwen2", "x 123"), ["x", " ", "1", "2", "3"]);
        assert_eq!(pieces("smollm", "x 12"), ["x", " ", "1", "2"]);
        assert_eq!(pieces("falcon", "x 12345"), ["x", " ", "123", "45"]);
    }

    #[test]
    fn combining_marks_are_part_of_words_in_qwen35_only() {
        assert_eq!(pieces("qwen35", "नमस्ते"), ["नमस्ते"]);
        assert_eq!(pieces("qwen2", "नमस्ते"), ["नमस", "\u{94D}त", "\u{947}"]);
    }

    #[test]
    fn cased_rules_cut_at_case_changes() {
        assert_eq!(
            pieces("gpt-4o", "camelCase HTTPServer don't"),
            ["camel", "Case", " HTTPServer", " don't"]
        );
        assert_eq!(
            pieces("tekken", "iPhone don't ABC"),
            ["i", "Phone", " don", "'t", " ABC"]
        );
        assert_eq!(pieces("gpt-4o", "中文ABC"), ["中文", "ABC"]);
        assert_eq!(pieces("gpt-4o", "a//\n/b"), ["a", "//\n/", "b"]);
    }

    #[test]
    fn deepseek_v3_rules() {
        assert_eq!(
            pieces("deepseek-v3", "x=1234 中文abc .foo()\n\n"),
            [
                "x", "=", "123", "4", " ", "中文", "abc", " .", "foo", "()\n\n"
            ]
        );
    }

    #[test]
    fn line_cut() {
        let text = b"ab c\n\n\nd\r\n";
        let cuts: Vec<_> = Pretokenizer::lines()
            .split(text)
            .into_iter()
            .map(|range| &text[range])
            .collect();
        assert_eq!(cuts, [&b"ab c"[..], b"\n\n\n", b"d\r", b"\n"]);
    }

    proptest! {
        #[test]
        fn pieces_cover_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), which in 0..NAMES.len()) {
            let mut at = 0;
            for range in NAMES[which].1.split(&bytes) {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, bytes.len());
        }

        /// The matchers against the patterns they claim to implement.
        #[test]
        fn matchers_agree_with_their_patterns(text in r"([ \n\r\t'/.,!a-dA-Dlresvtmd0-9éßŤǅʰ中ก\u{300}\u{301}€½\u{3000}]|'s|'LL|  ){0,40}") {
            for (name, regex) in REGEXES.iter() {
                let mut expected = vec![];
                let mut at = 0;
                for found in regex.find_iter(&text) {
                    let found = found.unwrap();
                    if found.start() > at {
                        expected.push(&text[at..found.start()]);
                    }
                    expected.push(found.as_str());
                    at = found.end();
                }
                if at < text.len() {
                    expected.push(&text[at..]);
                }
                prop_assert_eq!(pieces(name, &text), expected, "{}", name);
            }
        }
    }

    static REGEXES: LazyLock<Vec<(&str, fancy_regex::Regex)>> = LazyLock::new(|| {
        PATTERNS
            .iter()
            .map(|&(name, pattern)| (name, fancy_regex::Regex::new(pattern).unwrap()))
            .collect()
    });

    const PATTERNS: &[(&str, &str)] = &[
        (
            "gpt-2",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        ),
        (
            "llama-bpe",
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "qwen2",
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "qwen35",
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "bailingmoe",
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        (
            "seed-coder",
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "gpt-4o",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "tekken",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ("bloom", r" ?[^(\s|.,!?…。，、।۔،)]+"),
    ];
}
