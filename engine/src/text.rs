//! From token bytes to text: whole characters only, and stop strings across token borders.
//!
//! A token is a piece of bytes, not of text: a character may be spread over several tokens and a stop
//! string may begin in one token and end in another. [`TextStream`] turns bytes into complete
//! characters, [`StopStrings`] holds back what may still become a stop string. Both give the same
//! result however the input is cut into pieces.
//!
//! ```
//! use gemel_engine::text::{StopStrings, TextStream};
//!
//! let mut text = TextStream::new();
//! let mut stops = StopStrings::new(vec!["\nUser:".to_owned()]);
//! let mut shown = String::new();
//! for piece in ["caf\u{e9}".as_bytes(), b"\nUs", b"er", b": more"] {
//!     let event = stops.push(text.push(piece));
//!     shown.push_str(&event.emit);
//!     if event.stopped.is_some() {
//!         break;
//!     }
//! }
//! assert_eq!(shown, "caf\u{e9}");
//! ```

/// Turns a stream of bytes into complete characters.
///
/// The text of all pushes plus [`finish`](Self::finish) equals `String::from_utf8_lossy` of all bytes:
/// each maximal invalid piece becomes one U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    /// Bytes of a character that has begun but not ended: at most three after each push.
    pending: Vec<u8>,
    /// The text of the last push.
    ready: String,
}

impl TextStream {
    /// A stream that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes of one token and returns the characters that are now complete, perhaps none.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.ready.clear();
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        loop {
            let rest = &self.pending[start..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.ready.push_str(text);
                    start = self.pending.len();
                    break;
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    self.ready.push_str(&String::from_utf8_lossy(valid));
                    start += valid.len();
                    match error.error_len() {
                        Some(n_bytes) => {
                            self.ready.push(char::REPLACEMENT_CHARACTER);
                            start += n_bytes;
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending.drain(..start);
        &self.ready
    }

    /// Ends the stream: a character that was cut off becomes one U+FFFD, otherwise nothing.
    pub fn finish(&mut self) -> &str {
        self.ready.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.ready.push(char::REPLACEMENT_CHARACTER);
        }
        &self.ready
    }

    /// True while bytes of an unfinished character are held.
    pub fn is_inside_char(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// What [`StopStrings::push`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopEvent {
    /// Text that may be shown: it is neither a stop string nor the beginning of one.
    pub emit: String,
    /// Position, in the list given to [`StopStrings::new`], of the stop string that was found.
    pub stopped: Option<usize>,
}

/// Finds stop strings in text that arrives in pieces.
///
/// The match that *ends* first wins, and of two that end at the same character the longer one. That
/// is what reading character by character finds, so the result does not depend on the pieces.
/// Text before the match is emitted, the match and all that follows is not.
#[derive(Clone, Debug)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text that a pattern's partial match still claims.
    held: String,
    stopped: Option<usize>,
}

/// One stop string with its failure function (Knuth, Morris and Pratt): a long stop string against
/// a long text of near misses stays linear.
#[derive(Clone, Debug)]
struct Pattern {
    index: usize,
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix that is also a suffix of `bytes[..=n]`.
    fallback: Vec<usize>,
    /// How many bytes of the pattern the text currently ends with; below `bytes.len()`.
    matched: usize,
}

impl Pattern {
    fn new(index: usize, text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut n = 0;
        for i in 1..bytes.len() {
            while n > 0 && bytes[i] != bytes[n] {
                n = fallback[n - 1];
            }
            if bytes[i] == bytes[n] {
                n += 1;
            }
            fallback[i] = n;
        }
        Self {
            index,
            bytes,
            fallback,
            matched: 0,
        }
    }

    /// Takes one byte; true if the pattern ends with it.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopStrings {
    /// Watches for these strings. Empty strings match nothing and are passed over; the others keep
    /// their position in the list.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "callers hand over the request's list; taking it keeps the call site short"
    )]
    pub fn new(stops: Vec<String>) -> Self {
        let patterns = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty());
        Self {
            patterns: patterns.map(|(i, stop)| Pattern::new(i, stop)).collect(),
            held: String::new(),
            stopped: None,
        }
    }

    /// Takes the next piece of text. After a stop was found every later push emits nothing and
    /// reports the same stop.
    pub fn push(&mut self, text: &str) -> StopEvent {
        if self.stopped.is_some() {
            return StopEvent {
                emit: String::new(),
                stopped: self.stopped,
            };
        }
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            let mut found: Option<(usize, usize)> = None; // (n_bytes, index)
            for pattern in &mut self.patterns {
                if pattern.step(byte) {
                    let n_bytes = pattern.bytes.len();
                    if found.is_none_or(|(longest, _)| n_bytes > longest) {
                        found = Some((n_bytes, pattern.index));
                    }
                }
            }
            if let Some((n_bytes, index)) = found {
                self.stopped = Some(index);
                // A pattern ends with a whole character, so this cut is between characters.
                let mut emit = std::mem::take(&mut self.held);
                emit.push_str(&text[..=offset]);
                emit.truncate(emit.len() - n_bytes);
                return StopEvent {
                    emit,
                    stopped: self.stopped,
                };
            }
        }
        self.held.push_str(text);
        let claimed = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        // A partial match begins with a pattern's first byte, hence at a character border.
        let held = self.held.split_off(self.held.len() - claimed);
        StopEvent {
            emit: std::mem::replace(&mut self.held, held),
            stopped: None,
        }
    }

    /// Ends the text: gives back what was held for a stop string that did not come.
    pub fn flush(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Text that is held back at the moment.
    pub fn held(&self) -> &str {
        &self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cuts `bytes` at the given places, in any order and with repetitions.
    fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect()
    }

    fn stream(bytes: &[u8], cuts: &[usize]) -> String {
        let mut text = TextStream::new();
        let mut all = String::new();
        for piece in pieces(bytes, cuts) {
            all.push_str(text.push(piece));
        }
        all.push_str(text.finish());
        all
    }

    #[test]
    fn characters_wait_for_their_last_byte() {
        let mut text = TextStream::new();
        assert_eq!(text.push(b"a\xf0\x9f"), "a");
        assert!(text.is_inside_char(), "two of four bytes");
        assert_eq!(text.push(b"\x98"), "");
        assert_eq!(text.push(b"\x80b"), "\u{1f600}b");
        assert_eq!(text.finish(), "");
    }

    #[test]
    fn invalid_bytes_become_replacements() {
        let mut text = TextStream::new();
        assert_eq!(text.push(b"\xff\x80a"), "\u{fffd}\u{fffd}a");
        assert_eq!(text.push(b"\xe2\x82"), "");
        assert_eq!(text.push(b"x"), "\u{fffd}x", "the euro sign never ended");
        assert_eq!(text.push(b"\xf0\x9f\x98"), "");
        assert_eq!(text.finish(), "\u{fffd}");
        assert_eq!(text.finish(), "", "finishing twice adds nothing");
    }

    /// The specification in its plainest form: look at every prefix, shortest first.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let hit = stops.iter().enumerate().filter(|(_, s)| !s.is_empty());
            let hit = hit.filter(|(_, s)| text[..end].ends_with(s.as_str()));
            // The first of the longest.
            if let Some((i, s)) = hit.rev().max_by_key(|(_, s)| s.len()) {
                return (text[..end - s.len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    fn run(text: &str, stops: &[String], cuts: &[usize]) -> (String, Option<usize>) {
        let mut stream = TextStream::new();
        let mut watch = StopStrings::new(stops.to_vec());
        let mut all = String::new();
        let mut stopped = None;
        for piece in pieces(text.as_bytes(), cuts) {
            let event = watch.push(stream.push(piece));
            all.push_str(&event.emit);
            stopped = event.stopped;
            for stop in stops {
                assert!(
                    stop.is_empty() || !all.contains(stop.as_str()),
                    "a stop string was shown"
                );
            }
        }
        all.push_str(&watch.flush());
        (all, stopped)
    }

    #[test]
    fn stop_strings_by_hand() {
        let check = |text: &str, stops: &[&str], want: &str, which: Option<usize>| {
            let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
            for cut in 0..=text.len() {
                assert_eq!(
                    run(text, &stops, &[cut]),
                    (want.to_owned(), which),
                    "{text:?} cut at {cut}"
                );
            }
        };
        check("one two three", &["two"], "one ", Some(0));
        check("no stop", &["###"], "no stop", None);
        check("held ##", &["###"], "held ##", None);
        check("aaab", &["aab"], "a", Some(0));
        check("xabcy", &["abc", "b"], "xa", Some(1));
        check("xabc", &["c", "abc"], "x", Some(1));
        check("same", &["am", "am"], "s", Some(0));
        check("", &["a"], "", None);
        check("text", &["", "t"], "", Some(1));
        check(
            "na\u{ef}ve \u{e9}\u{e8}",
            &["\u{e9}\u{e8}"],
            "na\u{ef}ve ",
            Some(0),
        );
        check("stop first", &["stop first"], "", Some(0));
    }

    #[test]
    fn partial_matches_are_held_and_released() {
        let mut watch = StopStrings::new(vec!["</s>".to_owned()]);
        assert_eq!(watch.push("a</").emit, "a");
        assert_eq!(watch.held(), "</");
        assert_eq!(watch.push("b").emit, "</b");
        assert_eq!(watch.push("</s").emit, "");
        let event = watch.push("> tail");
        assert_eq!(
            event,
            StopEvent {
                emit: String::new(),
                stopped: Some(0)
            }
        );
        assert_eq!(watch.push("more"), event, "nothing follows a stop");
        assert_eq!(watch.flush(), "");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f)], 0..40),
            cuts in prop::collection::vec(any::<usize>(), 0..12),
        ) {
            prop_assert_eq!(stream(&bytes, &cuts), String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn any_cut_finds_the_same_stop(
            text in "[ab\u{e9}\u{1f600}]{0,24}",
            stops in prop::collection::vec("[ab\u{e9}\u{1f600}]{0,5}", 0..4),
            cuts in prop::collection::vec(any::<usize>(), 0..10),
        ) {
            prop_assert_eq!(run(&text, &stops, &cuts), naive(&text, &stops));
        }
    }
}
