//! Tokenizers against golden ids: real vocabularies, one list of awkward strings.
//!
//! `golden/tokenizers/strings.json` holds the strings, `NAME.json` the ids of each for one vocabulary, as computed by
//! llama.cpp. Vocabularies are in `golden/tokenizers/NAME.gguf` where they are small enough to be kept here. The others
//! are looked for in the folder `$GEMEL_MODELS`, which defaults to `models` in the cache folder of this project.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests")]

use std::path::{Path, PathBuf};

use gemel_engine::gguf::{Array, GgufFile, Metadata, Value};
use gemel_engine::tokenizer::{Tokenizer, TokenizerData, TokenizerError};
use proptest::prelude::*;
use serde_json::Value as Json;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/tokenizers")
        .join(file)
}

fn json(file: &str) -> Json {
    serde_json::from_slice(&std::fs::read(golden(file)).unwrap()).unwrap()
}

/// A file of the models folder, if somebody has put it there.
fn model_file(file: &str) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    let folder = var("GEMEL_MODELS").or_else(|| {
        let cache = var("GEMEL_CACHE").or_else(|| {
            var("XDG_CACHE_HOME")
                .or_else(|| var("HOME").map(|home| home.join(".cache")))
                .map(|cache| cache.join("gemel"))
        });
        Some(cache?.join("models"))
    })?;
    Some(folder.join(file)).filter(|path| path.is_file())
}

fn metadata(path: &Path) -> Metadata {
    GgufFile::open(path).unwrap().metadata().clone()
}

/// The tokenizer of a committed vocabulary.
fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_metadata(&metadata(&golden(&format!("{name}.gguf")))).unwrap()
}

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn ids_of(list: &Json) -> Option<Vec<u32>> {
    list.as_array().map(|ids| {
        ids.iter()
            .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
            .collect()
    })
}

/// What llama.cpp additionally does to a whole decoded text of some vocabularies, and a stream of tokens cannot do.
fn clean_up_spaces(text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    // A blank before a sign.
    let mut out = vec![];
    for (at, &byte) in text.iter().enumerate() {
        if byte == b' ' && matches!(text.get(at + 1), Some(b'?' | b'!' | b'.' | b',')) {
            continue;
        }
        out.push(byte);
    }
    text = std::mem::take(&mut out);
    // The blanks around a lone apostrophe.
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(b" ' ") {
            out.push(b'\'');
            at += 3;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    text = std::mem::take(&mut out);
    // The blank before a contraction.
    at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if ![&b" 's"[..], b" 'm", b" 're", b" 've"]
            .iter()
            .any(|short| rest.starts_with(short))
        {
            out.push(text[at]);
        }
        at += 1;
    }
    out
}

/// Compares every string of one vocabulary; returns the differences.
fn check_items(
    tokenizer: &Tokenizer,
    expected: &Json,
    strings: &Json,
    cleans_up: bool,
) -> Vec<String> {
    let mut wrong = vec![];
    let strings = strings["items"].as_array().unwrap();
    let items = expected["items"].as_array().unwrap();
    assert_eq!(
        strings.len(),
        items.len(),
        "the list of strings has changed"
    );
    let prefix = ids_of(&expected["tokenizer"]["add_special_prefix"]).unwrap();
    let suffix = ids_of(&expected["tokenizer"]["add_special_suffix"]).unwrap();
    for (string, item) in strings.iter().zip(items) {
        let tag = item["tag"].as_str().unwrap();
        assert_eq!(
            string["tag"], item["tag"],
            "the list of strings has changed"
        );
        let text = bytes_of_hex(string["bytes_hex"].as_str().unwrap());
        let plain = tokenizer.encode_bytes(&text, false, false);
        // llama.cpp fails on code points that do not exist; ids are enough here.
        let Some(expected_plain) = ids_of(&item["plain"]) else {
            continue;
        };
        if plain != expected_plain {
            wrong.push(format!(
                "{tag}: plain {plain:?}, expected {expected_plain:?}"
            ));
            continue;
        }
        let expected_special = ids_of(&item["special"]).unwrap_or(expected_plain);
        let special = tokenizer.encode_bytes(&text, false, true);
        if special != expected_special {
            wrong.push(format!(
                "{tag}: special {special:?}, expected {expected_special:?}"
            ));
        }
        let with_ends = tokenizer.encode_bytes(&text, true, true);
        if with_ends != [&prefix[..], &special, &suffix].concat() {
            wrong.push(format!(
                "{tag}: with ends {with_ends:?}, expected {prefix:?} + {special:?} + {suffix:?}"
            ));
        }
        let expected_text = item["detok_hex"].as_str().map_or(text, bytes_of_hex);
        let mut decoded = tokenizer.decode(&plain, true);
        if cleans_up {
            decoded = clean_up_spaces(&decoded);
        }
        if decoded != expected_text {
            let shown = String::from_utf8_lossy;
            wrong.push(format!(
                "{tag}: decodes to {:?}, expected {:?}",
                shown(&decoded),
                shown(&expected_text)
            ));
        }
    }
    wrong
}

fn check_vocabulary(name: &str, metadata: &Metadata, cleans_up: bool) {
    let expected = json(&format!("{name}.json"));
    let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
    let facts = &expected["tokenizer"];
    let id = |key: &str| facts[key].as_i64().and_then(|id| u32::try_from(id).ok());
    assert_eq!(
        tokenizer.n_vocab() as u64,
        facts["n_vocab"].as_u64().unwrap(),
        "{name}: n_vocab"
    );
    assert_eq!(tokenizer.bos(), id("bos"), "{name}: bos");
    assert_eq!(tokenizer.eos(), id("eos"), "{name}: eos");
    assert_eq!(
        tokenizer.eot().is_some(),
        id("eot").is_some(),
        "{name}: eot"
    );
    assert_eq!(
        tokenizer.eog(),
        ids_of(&facts["end_of_generation"]).unwrap(),
        "{name}: end of generation"
    );
    for id in [tokenizer.eos(), tokenizer.eot(), tokenizer.eom()]
        .into_iter()
        .flatten()
    {
        assert!(tokenizer.is_eog(id), "{name}: {id} ends something");
    }
    let wrong = check_items(&tokenizer, &expected, &json("strings.json"), cleans_up);
    assert!(
        wrong.is_empty(),
        "{name}: {} differences\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn check_committed(name: &str, cleans_up: bool) {
    check_vocabulary(name, &metadata(&golden(&format!("{name}.gguf"))), cleans_up);
}

/// As the file `like`, with another pre-tokenizer.
fn check_committed_as(name: &str, like: &str, pre: &str, cleans_up: bool) {
    let mut metadata = metadata(&golden(&format!("{like}.gguf")));
    metadata.insert("tokenizer.ggml.pre", Value::String(pre.to_owned()));
    check_vocabulary(name, &metadata, cleans_up);
}

macro_rules! vocabularies {
    ($($test:ident: $name:literal, cleans up: $cleans_up:literal;)*) => {$(
        #[test]
        fn $test() {
            check_committed($name, $cleans_up);
        }
    )*};
}

vocabularies! {
    bert_bge: "bert-bge", cleans up: true;
    command_r: "command-r-small", cleans up: false;
    deepseek_llm: "deepseek-llm-small", cleans up: false;
    deepseek_coder: "deepseek-coder", cleans up: false;
    falcon: "falcon", cleans up: true;
    gemma_4: "gemma-4-small", cleans up: true;
    gpt_2: "gpt-2", cleans up: true;
    gpt_neox: "gpt-neox", cleans up: true;
    llama_bpe: "llama-bpe-small", cleans up: true;
    llama_spm: "llama-spm", cleans up: false;
    phi_3: "phi-3", cleans up: false;
    qwen2: "qwen2-small", cleans up: false;
    smollm: "smollm", cleans up: false;
}

/// Further texts, with the start token asked for and not.
fn check_texts(tokenizer: &Tokenizer, file: &str) {
    for item in json(file)["items"].as_array().unwrap() {
        let text = bytes_of_hex(item["bytes_hex"].as_str().unwrap());
        for (key, add_special, parse_special) in [
            ("ids_special", false, true),
            ("ids_special_bos", true, true),
            ("ids_plain", false, false),
            ("ids_plain_bos", true, false),
        ] {
            let ids = tokenizer.encode_bytes(&text, add_special, parse_special);
            if let Some(expected) = ids_of(&item[key]) {
                assert_eq!(
                    ids,
                    expected,
                    "{file}: {key} of {:?}",
                    String::from_utf8_lossy(&text)
                );
            }
        }
    }
}

#[test]
fn texts_of_smollm2() {
    check_texts(&tokenizer("smollm"), "smollm-texts.json");
}

#[test]
fn texts_of_gemma_3() {
    match model_file("gemma3-270m-q4_k_m.gguf") {
        Some(path) => {
            check_texts(
                &Tokenizer::from_metadata(&metadata(&path)).unwrap(),
                "gemma-texts.json",
            );
        }
        None => eprintln!("skipped: the models folder has no gemma3-270m-q4_k_m.gguf"),
    }
}

/// The two vocabularies differ in the name of the pre-tokenizer only.
#[test]
fn mpt() {
    check_committed_as("mpt", "gpt-neox", "mpt", true);
}

/// The two vocabularies differ in the name of the pre-tokenizer only.
#[test]
fn qwen35() {
    check_committed_as("qwen35-small", "qwen2-small", "qwen35", false);
}

/// Vocabularies that are too large for the repository.
#[test]
fn large_vocabularies() {
    for (name, file, cleans_up) in [
        ("gemma", "gemma3-270m-q4_k_m.gguf", false),
        ("smollm", "smollm2-135m-instruct-q4_1.gguf", false),
        ("aquila", "tokenizers/aquila.gguf", true),
        ("baichuan", "tokenizers/baichuan.gguf", false),
        ("command-r", "tokenizers/command-r.gguf", false),
        ("deepseek-llm", "tokenizers/deepseek-llm.gguf", false),
        ("gemma-4", "tokenizers/gemma-4.gguf", true),
        ("llama-bpe", "tokenizers/llama-bpe.gguf", true),
        ("qwen2", "tokenizers/qwen2.gguf", false),
        ("qwen35", "tokenizers/qwen35.gguf", false),
        ("refact", "tokenizers/refact.gguf", true),
        ("starcoder", "tokenizers/starcoder.gguf", true),
    ] {
        match model_file(file) {
            Some(path) => check_vocabulary(name, &metadata(&path), cleans_up),
            None => eprintln!("skipped: {name}, as the models folder has no {file}"),
        }
    }
}

/// A vocabulary that has every byte.
fn byte_level() -> &'static Tokenizer {
    static TOKENIZER: std::sync::LazyLock<Tokenizer> =
        std::sync::LazyLock::new(|| tokenizer("qwen2-small"));
    &TOKENIZER
}

fn by_score() -> &'static Tokenizer {
    static TOKENIZER: std::sync::LazyLock<Tokenizer> =
        std::sync::LazyLock::new(|| tokenizer("llama-spm"));
    &TOKENIZER
}

proptest! {
    #[test]
    fn byte_level_round_trip(text in any::<String>(), parse in any::<bool>()) {
        let ids = byte_level().encode(&text, false, parse);
        prop_assert_eq!(byte_level().decode(&ids, true), text.as_bytes());
    }

    #[test]
    fn byte_fallback_round_trip(text in any::<String>()) {
        // The mark itself reads as a blank.
        let text = text.replace('\u{2581}', "");
        let ids = by_score().encode(&text, false, false);
        prop_assert_eq!(by_score().decode(&ids, true), text.as_bytes());
    }

    #[test]
    fn any_bytes_have_ids(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        byte_level().encode_bytes(&bytes, true, true);
        by_score().encode_bytes(&bytes, true, true);
    }

    #[test]
    fn tokens_concatenate_to_the_text(text in "[a-z <|>_\n]{0,60}") {
        let ids = byte_level().encode(&text, false, true);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| byte_level().token_bytes(id).unwrap()).copied().collect();
        prop_assert_eq!(bytes, text.as_bytes());
    }
}

/// No input may make the work grow faster than its length; a quadratic scan of these would take minutes.
#[test]
fn long_inputs_are_linear() {
    let n = 1 << 18;
    for text in [
        "a".repeat(n),
        " ".repeat(n),
        "\n".repeat(n),
        "ab".repeat(n / 2),
        " \n".repeat(n / 2),
        "é".repeat(n / 2),
        "<".repeat(n),
    ] {
        for tokenizer in [byte_level(), by_score()] {
            let ids = tokenizer.encode(&text, false, true);
            assert_eq!(tokenizer.decode(&ids, true), text.as_bytes());
        }
    }
}

fn data(model: &str, tokens: &[&str]) -> TokenizerData {
    TokenizerData::new(model, tokens.iter().map(|&text| text.to_owned()).collect())
}

#[test]
fn unknown_pretokenizer_names_the_remedy() {
    let mut unknown = data("gpt2", &["a"]);
    unknown.pre = Some("warp-9".to_owned());
    unknown.merges = Some(vec![]);
    let message = Tokenizer::new(unknown).unwrap_err().to_string();
    for part in [
        "`warp-9`",
        "--override-kv tokenizer.ggml.pre=str:NAME",
        "llama-bpe",
        "qwen35",
        "gpt-2",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}

type Change = fn(&mut TokenizerData);

#[test]
fn hostile_data_are_refused() {
    let refused = |data: TokenizerData| Tokenizer::new(data).unwrap_err();
    assert!(matches!(
        refused(data("t5", &["a"])),
        TokenizerError::UnknownModel { .. }
    ));
    assert!(matches!(
        refused(data("gpt2", &["a"])),
        TokenizerError::Missing {
            key: "tokenizer.ggml.merges",
            ..
        }
    ));
    assert!(matches!(
        refused(data("llama", &["a"])),
        TokenizerError::Missing {
            key: "tokenizer.ggml.scores",
            ..
        }
    ));

    let spm = || {
        let mut spm = data("llama", &["<unk>", "<0x41>", "b"]);
        spm.scores = Some(vec![0.0; 3]);
        spm.token_types = Some(vec![2, 6, 1]);
        spm
    };
    assert!(
        Tokenizer::new(spm()).is_ok(),
        "the base of the cases below is fine"
    );
    let cases: [(&str, Change); 7] = [
        ("tokenizer.ggml.scores has 2 entries", |spm| {
            spm.scores = Some(vec![0.0; 2]);
        }),
        ("tokenizer.ggml.token_type has 4 entries", |spm| {
            spm.token_types = Some(vec![1; 4]);
        }),
        ("byte token 1 is `<0xZZ>`", |spm| {
            spm.tokens[1] = "<0xZZ>".to_owned();
        }),
        ("byte token 1 is `b`", |spm| {
            spm.tokens[1] = "b".to_owned();
        }),
        ("eos_token_id is 3, but the vocabulary has 3", |spm| {
            spm.ids = vec![("tokenizer.ggml.eos_token_id", 3)];
        }),
        ("text of token 2 has 70000 bytes", |spm| {
            spm.tokens[2] = "b".repeat(70_000);
        }),
        ("is empty", |spm| spm.tokens.clear()),
    ];
    for (expected, change) in cases {
        let mut changed = spm();
        change(&mut changed);
        let message = refused(changed).to_string();
        assert!(
            message.contains(expected),
            "{message:?} does not say {expected:?}"
        );
    }
}

#[test]
fn odd_but_harmless_data_work() {
    let mut odd = data("llama", &["", "a", "a", "aa", ""]);
    odd.scores = Some(vec![f32::INFINITY, 0.0, 0.0, f32::NEG_INFINITY, 0.0]);
    odd.token_types = Some(vec![3, 1, 1, 99, -1]);
    odd.add_space_prefix = Some(false);
    let tokenizer = Tokenizer::new(odd).unwrap();
    assert_eq!(
        tokenizer.encode("aaa", false, true),
        [3, 2],
        "of equal texts the last token answers"
    );
    assert_eq!(
        tokenizer.decode(&[1, 3, 77, u32::MAX], true),
        b"a",
        "ids outside the vocabulary write nothing"
    );
    assert_eq!(tokenizer.token_bytes(5), None);
    assert_eq!(tokenizer.token_text(2), Some("a"));
    assert_eq!(tokenizer.token_id("a"), Some(2));
    assert_eq!(tokenizer.token_id(""), None);
}

#[test]
fn ids_of_minus_one_mean_none() {
    let mut metadata = Metadata::new();
    let list = |texts: &[&str]| {
        Value::Array(Array::String(
            texts.iter().map(|&text| text.to_owned()).collect(),
        ))
    };
    metadata.insert("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.insert("tokenizer.ggml.tokens", list(&["a", "b"]));
    metadata.insert("tokenizer.ggml.merges", list(&[]));
    metadata.insert("tokenizer.ggml.bos_token_id", Value::U32(u32::MAX));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::I32(-1));
    metadata.insert("tokenizer.ggml.padding_token_id", Value::U32(1));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.pad()),
        (None, None, Some(1))
    );
}

#[test]
fn control_tokens_are_parsed_and_shown_on_request() {
    let tokenizer = byte_level();
    let text = "<|im_start|>user\nHi<|im_end|>";
    let parsed = tokenizer.encode(text, false, true);
    let start = tokenizer.token_id("<|im_start|>").unwrap();
    assert_eq!(parsed.first(), Some(&start));
    assert!(
        !tokenizer.encode(text, false, false).contains(&start),
        "user text cannot open a turn"
    );
    assert_eq!(tokenizer.decode(&parsed, false), b"user\nHi");
    assert_eq!(tokenizer.decode(&parsed, true), text.as_bytes());
    assert!(tokenizer.is_control(start) && !tokenizer.is_eog(start));
    assert!(tokenizer.is_eog(*parsed.last().unwrap()));
}

#[test]
fn the_prefix_blank_is_taken_away_again() {
    let tokenizer = by_score();
    let ids = tokenizer.encode("Hello world", true, false);
    assert_eq!(ids.first(), Some(&tokenizer.bos().unwrap()));
    assert_eq!(tokenizer.decode_lossy(&ids, false), "Hello world");
    let words: Vec<_> = ids[1..]
        .iter()
        .map(|&id| tokenizer.token_bytes(id).unwrap())
        .collect();
    assert_eq!(words, [&b" Hello"[..], b" world"]);
}
