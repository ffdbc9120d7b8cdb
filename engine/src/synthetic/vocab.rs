//! A byte-level vocabulary of any size: all bytes, a few merges, an end token, and words that no text becomes.

use crate::gguf::{Array, Metadata, Value};

/// Merges, most frequent first; each makes a token.
const MERGES: &[(&str, &str)] = &[
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("Ġ", "w"),
    ("Ġ", "o"),
    ("e", "n"),
    ("Ġ", "c"),
    ("i", "t"),
    ("i", "s"),
    ("a", "n"),
    ("o", "r"),
    ("e", "s"),
    ("Ġ", "b"),
    ("e", "d"),
    ("Ġ", "f"),
    ("in", "g"),
    ("Ġ", "p"),
    ("Ġo", "n"),
    ("Ġan", "d"),
    ("Ġa", "n"),
    ("Ġ", "in"),
];

/// The token that ends a text.
const END: &str = "<|endoftext|>";

/// `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// The character that stands for a byte in a byte-level vocabulary: itself where it is printable Latin-1, the
/// characters from U+0100 on for the others, in order.
fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or_default()
}

/// Adds the keys `tokenizer.*` of a vocabulary of `n_vocab`.
pub(super) fn put(metadata: &mut Metadata, n_vocab: usize) {
    let bytes = (0..=255).map(|byte| byte_character(byte).to_string());
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    let mut tokens: Vec<String> = bytes.chain(merged).collect();
    tokens.push(END.to_owned());
    let end = tokens.len() - 1;
    tokens.truncate(n_vocab);
    // Words with a number: nothing merges into them, so no text becomes one, but a sampler may draw them.
    for id in tokens.len()..n_vocab {
        tokens.push(format!("Ġw{id}"));
    }
    let types = (0..n_vocab).map(|id| if id == end { CONTROL } else { NORMAL });
    let types = Value::Array(Array::I32(types.collect()));
    let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}"));
    let merges = Value::Array(Array::String(merges.collect()));
    let text = |text: &str| Value::String(text.to_owned());
    let mut put = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value);
    put("model", text("gpt2"));
    put("pre", text("gpt-2"));
    put("tokens", Value::Array(Array::String(tokens)));
    put("token_type", types);
    put("merges", merges);
    put("bos_token_id", Value::U32(end as u32));
    put("eos_token_id", Value::U32(end as u32));
    put("add_bos_token", Value::Bool(false));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn every_text_survives_and_ids_stay_below_the_padding() {
        let mut metadata = Metadata::new();
        put(&mut metadata, 512);
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        assert_eq!(tokenizer.n_vocab(), 512);
        for text in ["the thing and on", "é\n\t日本 \u{1f600} w300", ""] {
            let ids = tokenizer.encode(text, true, true);
            assert_eq!(tokenizer.decode_lossy(&ids, false), text);
            assert!(ids.iter().all(|&id| id < 285), "{text:?}: {ids:?}");
        }
        assert_eq!(
            tokenizer.encode(" the", false, false).len(),
            1,
            "merges are used"
        );
        assert_eq!(
            tokenizer.decode_lossy(&[300], false),
            " w300",
            "padding has a text"
        );
        assert_eq!(tokenizer.eos(), Some(284));
    }
}
