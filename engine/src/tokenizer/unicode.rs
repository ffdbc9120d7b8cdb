//! Code points and their classes, for text that need not be valid UTF-8.
//!
//! Pre-tokenizer rules are written over Unicode general categories.
//! The tables live in `unicode/tables.rs`; a flat array of class bits is filled from them once.

mod tables;

use std::borrow::Cow;
use std::sync::LazyLock;

use tables::{CLASSES, DECOMPOSITIONS};

/// General category L.
pub(super) const LETTER: u16 = 1;
/// General category M.
pub(super) const MARK: u16 = 1 << 1;
/// General category N.
pub(super) const NUMBER: u16 = 1 << 2;
/// General category P.
pub(super) const PUNCTUATION: u16 = 1 << 3;
/// General category S.
pub(super) const SYMBOL: u16 = 1 << 4;
/// General categories Cc, Cf and Co (assigned, but no character to see).
pub(super) const CONTROL: u16 = 1 << 5;
/// General categories Lu and Lt; set together with [`LETTER`].
pub(super) const UPPER: u16 = 1 << 6;
/// General category Ll; set together with [`LETTER`].
pub(super) const LOWER: u16 = 1 << 7;
/// Property `White_Space`: what `\s` means in the rules.
pub(super) const SPACE: u16 = 1 << 8;

/// What stands for a byte that starts no code point.
const REPLACEMENT: u32 = 0xFFFD;

const MAX_CODE_POINT: u32 = 0x10_FFFF;

static FLAT: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut flat = vec![0u16; MAX_CODE_POINT as usize + 1];
    for &(first, last, class) in CLASSES {
        flat[first as usize..=last as usize].fill(class);
    }
    for (code, class) in flat.iter_mut().enumerate() {
        if char::from_u32(code as u32).is_some_and(char::is_whitespace) {
            *class |= SPACE;
        }
    }
    flat
});

/// The class bits of every code point; look up with [`class_in`].
pub(super) fn classes() -> &'static [u16] {
    &FLAT
}

/// The class bits of `code`, 0 for surrogates, unassigned and impossible code points.
pub(super) fn class_in(classes: &[u16], code: u32) -> u16 {
    classes.get(code as usize).copied().unwrap_or(0)
}

/// The first code point of the canonical decomposition of `code`; `code` itself when it has none.
pub(super) fn decomposed_base(code: u32) -> u32 {
    let after = DECOMPOSITIONS.partition_point(|&(first, _, _)| first <= code);
    match after.checked_sub(1).and_then(|idx| DECOMPOSITIONS.get(idx)) {
        Some(&(_, last, base)) if code <= last => base,
        _ => code,
    }
}

/// The lower-case form of `code` where that is one code point, else `code`.
pub(super) fn lower(code: u32) -> u32 {
    let Some(c) = char::from_u32(code) else {
        return code;
    };
    let mut forms = c.to_lowercase();
    match (forms.next(), forms.next()) {
        (Some(form), None) => u32::from(form),
        _ => code,
    }
}

/// Length in bytes that the leading byte of an encoded code point announces; 1 for a stray continuation byte.
pub(super) fn announced_len(lead: u8) -> usize {
    match lead >> 4 {
        0x0..=0xB => 1,
        0xC | 0xD => 2,
        0xE => 3,
        _ => 4,
    }
}

/// Decodes the code point at the start of `bytes` without checking its range: over-long forms and surrogates pass.
/// Returns it with its length, or U+FFFD and 1 where no code point starts. `bytes` must not be empty.
pub(super) fn decode_lenient(bytes: &[u8]) -> (u32, usize) {
    let lead = bytes[0];
    let (len, mut code) = match lead {
        0x00..=0x7F => return (u32::from(lead), 1),
        0xC0..=0xDF => (2, u32::from(lead & 0x1F)),
        0xE0..=0xEF => (3, u32::from(lead & 0x0F)),
        0xF0..=0xF7 => (4, u32::from(lead & 0x07)),
        _ => return (REPLACEMENT, 1),
    };
    for idx in 1..len {
        match bytes.get(idx) {
            Some(&byte) if byte & 0xC0 == 0x80 => code = code << 6 | u32::from(byte & 0x3F),
            _ => return (REPLACEMENT, 1),
        }
    }
    if code > MAX_CODE_POINT {
        code = REPLACEMENT;
    }
    (code, len)
}

/// Appends the shortest encoding of `code`; a surrogate keeps its three-byte form.
pub(super) fn push_code(code: u32, out: &mut Vec<u8>) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([
            0xE0 | (code >> 12) as u8 & 0x0F,
            0x80 | (code >> 6) as u8 & 0x3F,
            0x80 | code as u8 & 0x3F,
        ]),
    }
}

/// `bytes` with every stray byte replaced by U+FFFD and every code point in its shortest form.
/// Valid UTF-8 comes back as it is.
pub(super) fn scrub(bytes: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() + 8);
    let mut at = 0;
    while at < bytes.len() {
        let (code, len) = decode_lenient(&bytes[at..]);
        push_code(code, &mut out);
        at += len;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// The general categories as the regex engine knows them, one range of equal class a line.
    fn expected_classes() -> Vec<(u32, u32, u16)> {
        let mut flat = vec![0u16; MAX_CODE_POINT as usize + 1];
        let all: String = ('\0'..=char::MAX).collect();
        for (pattern, class) in [
            (r"\p{L}+", LETTER),
            (r"\p{M}+", MARK),
            (r"\p{N}+", NUMBER),
            (r"\p{P}+", PUNCTUATION),
            (r"\p{S}+", SYMBOL),
            (r"[\p{Cc}\p{Cf}\p{Co}]+", CONTROL),
            (r"[\p{Lu}\p{Lt}]+", UPPER),
            (r"\p{Ll}+", LOWER),
        ] {
            for found in fancy_regex::Regex::new(pattern).unwrap().find_iter(&all) {
                for c in found.unwrap().as_str().chars() {
                    flat[c as usize] |= class;
                }
            }
        }
        let mut ranges: Vec<(u32, u32, u16)> = Vec::new();
        for (code, &class) in flat.iter().enumerate() {
            let code = code as u32;
            match ranges.last_mut() {
                Some((_, last, open)) if *open == class && *last + 1 == code => *last = code,
                _ if class != 0 => ranges.push((code, code, class)),
                _ => {}
            }
        }
        ranges
    }

    /// Rewrites the table when `GEMEL_UPDATE_UNICODE` is set, so a newer Unicode version is one command away.
    #[test]
    fn classes_agree_with_the_regex_engine() {
        let expected = expected_classes();
        if std::env::var_os("GEMEL_UPDATE_UNICODE").is_some() {
            let path = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/tokenizer/unicode/tables.rs"
            );
            let text = std::fs::read_to_string(path).unwrap();
            let head = text.find("    // classes").unwrap();
            let tail = text.find("    // end of classes").unwrap();
            let mut rows = String::from("    // classes\n");
            for chunk in expected.chunks(6) {
                rows.push_str("   ");
                for (first, last, class) in chunk {
                    write!(rows, " (0x{first:x}, 0x{last:x}, {class}),").unwrap();
                }
                rows.push('\n');
            }
            std::fs::write(path, format!("{}{rows}{}", &text[..head], &text[tail..])).unwrap();
            return;
        }
        assert!(
            CLASSES == expected.as_slice(),
            "run with GEMEL_UPDATE_UNICODE=1 and review the diff"
        );
    }

    #[test]
    fn decompositions_are_sorted_and_right() {
        for pair in DECOMPOSITIONS.windows(2) {
            assert!(pair[0].1 < pair[1].0, "ranges {pair:x?} overlap");
        }
        for (composed, base) in [
            ('é', 'e'),
            ('Å', 'A'),
            ('ǅ', 'ǅ'),
            ('ệ', 'e'),
            ('가', 'ᄀ'),
            ('힣', 'ᄒ'),
            ('Ω', 'Ω'),
            ('が', 'か'),
            ('a', 'a'),
        ] {
            assert_eq!(decomposed_base(composed as u32), base as u32, "{composed}");
        }
    }

    #[test]
    fn scrubbing_keeps_valid_text_and_marks_stray_bytes() {
        assert!(
            matches!(scrub("aé語😀".as_bytes()), Cow::Borrowed(_)),
            "valid text is not copied"
        );
        assert_eq!(*scrub(b"a\xFFb"), *"a\u{FFFD}b".as_bytes());
        assert_eq!(*scrub(b"ok\xE4\xBD"), *"ok\u{FFFD}\u{FFFD}".as_bytes());
        assert_eq!(*scrub(b"\xC0\xAF"), *b"/");
        assert_eq!(*scrub(b"\xED\xA0\x80\xFF"), *b"\xED\xA0\x80\xEF\xBF\xBD");
        assert_eq!(*scrub(b"\xF4\x90\x80\x80"), *"\u{FFFD}".as_bytes());
    }

    #[test]
    fn lower_case_is_one_code_point() {
        assert_eq!(lower(u32::from('Ä')), u32::from('ä'));
        assert_eq!(lower(u32::from('İ')), u32::from('İ'));
        assert_eq!(lower(0xD800), 0xD800);
    }
}
