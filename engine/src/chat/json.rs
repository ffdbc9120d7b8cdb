//! JSON as Python's `json.dumps` writes it.

use super::charge;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Deepest nesting; the JSON of requests cannot be deeper.
const MAX_DEPTH: usize = 200;

/// How to write.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// One level of indentation; `None` writes one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`, without the escapes
/// for HTML that Jinja's own filter makes: this is what model authors' tools provide.
#[allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > NAMES.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let mut arguments = [const { Value::UNDEFINED }; 4];
    for ((slot, name), i) in arguments.iter_mut().zip(NAMES).zip(0..) {
        *slot = match positional.get(i) {
            Some(value) => value.clone(),
            None => named.get::<Option<Value>>(name)?.unwrap_or_default(),
        };
    }
    named.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = arguments;

    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(indent.to_string()),
        _ => {
            let n = usize::try_from(indent)?;
            // An indentation costs its length on every line.
            Some(" ".repeat(n.min(64)))
        }
    };
    let (item_separator, key_separator) = match separators.kind() {
        ValueKind::None | ValueKind::Undefined => {
            let item = if indent.is_some() { "," } else { ", " };
            (item.to_owned(), ": ".to_owned())
        }
        _ => {
            let pair = [0_i64, 1].map(|i| separators.get_item(&Value::from(i)));
            let [item, key] = pair;
            (item?.to_string(), key?.to_string())
        }
    };
    let style = Style {
        ensure_ascii: ensure_ascii.is_true(),
        sort_keys: sort_keys.is_true(),
        indent,
        item_separator,
        key_separator,
    };
    let mut writer = Writer {
        state,
        style,
        out: String::new(),
        n_charged: 0,
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

fn refuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadSerialization, message.into())
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    style: Style,
    out: String,
    n_charged: usize,
}

impl Writer<'_, '_, '_> {
    /// Pays for what was written since the last time, and for looking at a value.
    fn pay(&mut self) -> Result<(), Error> {
        charge(self.state, 64 + self.out.len() - self.n_charged)?;
        self.n_charged = self.out.len();
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse(format!(
                "a value nested deeper than {MAX_DEPTH} levels"
            )));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => {
                let text = if value.is_true() { "true" } else { "false" };
                self.out.push_str(text);
            }
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                let mut n = 0;
                for item in items {
                    self.begin('[', n, depth);
                    self.value(&item, depth + 1)?;
                    n += 1;
                }
                self.end("[]", n, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort_by_cached_key(Value::to_string);
                }
                let n = keys.len();
                for (i, key) in keys.iter().enumerate() {
                    self.begin('{', i, depth);
                    self.key(key)?;
                    self.out.push_str(&self.style.key_separator);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.end("{}", n, depth);
            }
            ValueKind::Undefined => return Err(refuse("an undefined value is not JSON")),
            kind => return Err(refuse(format!("a value of type {kind} is not JSON"))),
        }
        self.pay()
    }

    /// What stands before item `i` of a list or map.
    fn begin(&mut self, open: char, i: usize, depth: usize) {
        if i == 0 {
            self.out.push(open);
        } else {
            self.out.push_str(&self.style.item_separator);
        }
        self.line(depth + 1);
    }

    fn end(&mut self, empty: &str, n: usize, depth: usize) {
        if n == 0 {
            self.out.push_str(empty);
        } else {
            self.line(depth);
            self.out.push_str(&empty[1..]);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => key.to_string(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.is_true().to_string(),
            ValueKind::Number => number(key),
            kind => return Err(refuse(format!("a key of type {kind} is not JSON"))),
        };
        self.string(&text);
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) => float(x, true),
        Err(_) => value.to_string(),
    }
}

/// A float as Python writes it: shortest digits, positional from 1e-4 up to 1e16. JSON and `str` differ in
/// how they spell what is not finite.
pub(super) fn float(x: f64, is_json: bool) -> String {
    if !x.is_finite() {
        let (nan, infinity) = if is_json {
            ("NaN", "Infinity")
        } else {
            ("nan", "inf")
        };
        let sign = if x < 0.0 { "-" } else { "" };
        return if x.is_nan() {
            nan.to_owned()
        } else {
            format!("{sign}{infinity}")
        };
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::float;

    /// Values of `repr` in Python 3.
    #[test]
    fn floats_as_python_prints_them() {
        let table = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (1e300, "1e+300"),
            (-2.5e-101, "-2.5e-101"),
            (f64::INFINITY, "Infinity"),
            (f64::NAN, "NaN"),
        ];
        for (x, want) in table {
            assert_eq!(float(x, true), want);
        }
    }
}
