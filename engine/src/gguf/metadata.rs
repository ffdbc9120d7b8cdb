//! Metadata: an ordered map from keys to typed values, with getters that explain what is wrong.

use super::error::{GgufError, shown};

/// Most transformer blocks any accepted model has.
pub const MAX_LAYERS: usize = 1024;

/// A metadata value as the file stores it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array; arrays of arrays are refused when parsing.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is its element type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Evaluates `$body` with `$v` bound to the vector of whichever variant `$array` is.
macro_rules! with_elements {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::F32($v) => $body,
            Array::Bool($v) => $body,
            Array::String($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F64($v) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        with_elements!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the element type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The elements widened to `i128`, if they are integers.
    fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Self::U8(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I8(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U16(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I16(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U32(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I32(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::U64(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::I64(v) => Box::new(v.iter().map(|&x| x.into())),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) => return None,
        })
    }
}

impl Value {
    /// Name of the type; `array` for every array.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The value widened to `i128`, if it is an integer.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => {
                return None;
            }
        })
    }

    /// Type and value for messages: `i32 -1`, `an array of 288 strings`.
    fn describe(&self) -> String {
        match self {
            Self::U8(x) => format!("u8 {x}"),
            Self::I8(x) => format!("i8 {x}"),
            Self::U16(x) => format!("u16 {x}"),
            Self::I16(x) => format!("i16 {x}"),
            Self::U32(x) => format!("u32 {x}"),
            Self::I32(x) => format!("i32 {x}"),
            Self::F32(x) => format!("f32 {x}"),
            Self::Bool(x) => format!("bool {x}"),
            Self::String(x) => format!("string \"{}\"", shown(x)),
            Self::Array(x) => format!("an array of {} {}", x.len(), x.type_name()),
            Self::U64(x) => format!("u64 {x}"),
            Self::I64(x) => format!("i64 {x}"),
            Self::F64(x) => format!("f64 {x}"),
        }
    }
}

/// Keys and values in the order of the file; keys are unique.
///
/// The getters come in pairs: `u32` fails when the key is absent, `opt_u32` returns `None`.
/// Both fail when the key is there and holds something else, naming the key, what was found and
/// what is needed. Integer getters accept any integer type whose value fits, because converters
/// disagree on widths and signs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// A map of these entries in this order.
    ///
    /// # Errors
    /// Names a key that occurs twice.
    pub(super) fn from_entries(entries: Vec<(String, Value)>) -> Result<Self, GgufError> {
        // Sorting once instead of hashing each key keeps this at four bytes an entry.
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        for pair in by_key.windows(2) {
            if entries[pair[0] as usize].0 == entries[pair[1] as usize].0 {
                return Err(GgufError::DuplicateKey {
                    key: shown(&entries[pair[0] as usize].0),
                });
            }
        }
        Ok(Self { entries, by_key })
    }

    /// Position of `key` in `by_key`, or where it would be inserted.
    fn search(&self, key: &str) -> Result<usize, usize> {
        self.by_key
            .binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.search(key).ok()?;
        Some(&self.entries[self.by_key[at] as usize].1)
    }

    /// Whether `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.search(key).is_ok()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Sets `key`; a key that exists keeps its place.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.search(&key) {
            Ok(at) => self.entries[self.by_key[at] as usize].1 = value,
            Err(at) => {
                self.by_key.insert(at, self.entries.len() as u32);
                self.entries.push((key, value));
            }
        }
    }

    /// Sets a key from text: `KEY=TYPE:VALUE`, `TYPE` one of `int`, `float`, `bool`, `str`.
    ///
    /// # Errors
    /// The text does not have that form, or the key decides how the file itself is read
    /// (`general.alignment`, `split.*`) and setting it now would have no effect.
    pub fn apply_override(&mut self, spec: &str) -> Result<(), GgufError> {
        let fail = |problem: String| GgufError::Override {
            spec: shown(spec),
            problem,
        };
        let (key, rest) = spec
            .split_once('=')
            .ok_or_else(|| fail("has no `=`".into()))?;
        let (kind, text) = rest
            .split_once(':')
            .ok_or_else(|| fail("has no `:` after the type".into()))?;
        if let Some(problem) = key_problem(key) {
            return Err(fail(format!("has a key that {problem}")));
        }
        if key == "general.alignment" || key.starts_with("split.") {
            return Err(fail(
                "sets a key that is used while the file is read, so it would have no effect".into(),
            ));
        }
        let value = match kind {
            "int" => Value::I64(
                text.parse()
                    .map_err(|_| fail(format!("has \"{}\" for an integer", shown(text))))?,
            ),
            "float" => match text.parse::<f64>() {
                Ok(x) if x.is_finite() => Value::F64(x),
                _ => return Err(fail(format!("has \"{}\" for a finite number", shown(text)))),
            },
            "bool" => match text {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => return Err(fail(format!("has \"{}\" for true or false", shown(text)))),
            },
            "str" => Value::String(text.to_owned()),
            _ => return Err(fail(format!("has the unknown type \"{}\"", shown(kind)))),
        };
        self.insert(key, value);
        Ok(())
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// The key is absent or not a string.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        required(key, self.opt_str(key)?, "a string")
    }

    /// A string.
    ///
    /// # Errors
    /// The key is not a string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A `u32` that must be there.
    ///
    /// # Errors
    /// The key is absent, not an integer, or out of range.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        required(key, self.opt_u32(key)?, "an integer")
    }

    /// A `u32`.
    ///
    /// # Errors
    /// The key is not an integer or out of range.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.read(key, "an integer from 0 to 4294967295", |value| {
            u32::try_from(value.integer()?).ok()
        })
    }

    /// A `u64` that must be there.
    ///
    /// # Errors
    /// The key is absent, not an integer, or negative.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        required(key, self.opt_u64(key)?, "an integer")
    }

    /// A `u64`.
    ///
    /// # Errors
    /// The key is not an integer or negative.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.read(key, "an integer that is not negative", |value| {
            u64::try_from(value.integer()?).ok()
        })
    }

    /// A number that must be there.
    ///
    /// # Errors
    /// The key is absent, not f32 or f64, or not finite as f32.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        required(key, self.opt_f32(key)?, "a number")
    }

    /// A number, stored as f32 or f64.
    ///
    /// # Errors
    /// The key is not f32 or f64, or not finite as f32.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.read(key, "a finite f32 or f64", |value| {
            let x = match *value {
                Value::F32(x) => x,
                Value::F64(x) => x as f32,
                _ => return None,
            };
            x.is_finite().then_some(x)
        })
    }

    /// A bool that must be there.
    ///
    /// # Errors
    /// The key is absent or not a bool.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        required(key, self.opt_bool(key)?, "a bool")
    }

    /// A bool.
    ///
    /// # Errors
    /// The key is not a bool.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read(key, "a bool", |value| match *value {
            Value::Bool(x) => Some(x),
            _ => None,
        })
    }

    /// An array of strings that must be there.
    ///
    /// # Errors
    /// The key is absent or not an array of strings.
    pub fn strings(&self, key: &str) -> Result<&[String], GgufError> {
        required(key, self.opt_strings(key)?, "an array of strings")
    }

    /// An array of strings.
    ///
    /// # Errors
    /// The key is not an array of strings.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.read(key, "an array of strings", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of bools that must be there.
    ///
    /// # Errors
    /// The key is absent or not an array of bools.
    pub fn bools(&self, key: &str) -> Result<&[bool], GgufError> {
        required(key, self.opt_bools(key)?, "an array of bools")
    }

    /// An array of bools.
    ///
    /// # Errors
    /// The key is not an array of bools.
    pub fn opt_bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.read(key, "an array of bools", |value| match value {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of integers that must be there.
    ///
    /// # Errors
    /// The key is absent, not an array of integers, or an element does not fit.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        required(key, self.opt_i32s(key)?, "an array of integers")
    }

    /// An array of integers of any width, each of which fits an `i32`.
    ///
    /// # Errors
    /// The key is not an array of integers or an element does not fit.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.opt_ints(key, "an array of integers that fit i32")
    }

    /// An array of integers that must be there, each of which fits a `u64`.
    ///
    /// # Errors
    /// The key is absent, not an array of integers, or an element does not fit.
    pub fn u64s(&self, key: &str) -> Result<Vec<u64>, GgufError> {
        let needed = "an array of integers that fit u64";
        required(key, self.opt_ints(key, needed)?, needed)
    }

    /// An array of numbers that must be there.
    ///
    /// # Errors
    /// The key is absent, not an array of f32 or f64, or an element is NaN.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        required(key, self.opt_f32s(key)?, "an array of numbers")
    }

    /// An array of numbers, stored as f32 or f64. Infinities pass (token scores may use them), NaN does not.
    ///
    /// # Errors
    /// The key is not an array of f32 or f64, or an element is NaN.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let numbers: Option<Vec<f32>> =
            self.read(key, "an array of f32 or f64", |value| match value {
                Value::Array(Array::F32(v)) => Some(v.clone()),
                Value::Array(Array::F64(v)) => Some(v.iter().map(|&x| x as f32).collect()),
                _ => None,
            })?;
        if let Some(at) = numbers
            .as_deref()
            .and_then(|v| v.iter().position(|x| x.is_nan()))
        {
            return Err(bad(key, format!("NaN at index {at}"), "numbers"));
        }
        Ok(numbers)
    }

    /// One `u32` for each of `n_layers` layers; see [`Self::opt_per_layer_u32`].
    ///
    /// # Errors
    /// As there, or the key is absent.
    pub fn per_layer_u32(&self, key: &str, n_layers: usize) -> Result<Vec<u32>, GgufError> {
        required(
            key,
            self.opt_per_layer_u32(key, n_layers)?,
            "an integer or an array of one per layer",
        )
    }

    /// One `u32` for each of `n_layers` layers: a single integer is repeated, an array must have that length.
    ///
    /// # Errors
    /// The key is neither, an element does not fit, the length differs, or `n_layers` is above [`MAX_LAYERS`].
    pub fn opt_per_layer_u32(
        &self,
        key: &str,
        n_layers: usize,
    ) -> Result<Option<Vec<u32>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.len() != n_layers => Err(bad(
                key,
                format!("{} elements", array.len()),
                format!("one for each of the {n_layers} layers"),
            )),
            Some(Value::Array(_)) => self.opt_ints(key, "an array of integers that fit u32"),
            // The caller's layer count comes from the file too; it must not decide how much is allocated.
            Some(_) if n_layers > MAX_LAYERS => Err(bad(
                key,
                format!("a value for {n_layers} layers"),
                format!("at most {MAX_LAYERS} layers"),
            )),
            Some(_) => Ok(self.opt_u32(key)?.map(|x| vec![x; n_layers])),
        }
    }

    /// The integers of an array, each of which must fit `T`.
    fn opt_ints<T: TryFrom<i128>>(
        &self,
        key: &str,
        needed: &str,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let elements = match value {
            Value::Array(array) => array.integers(),
            _ => None,
        };
        let elements = elements.ok_or_else(|| bad(key, value.describe(), needed))?;
        let numbers: Result<Vec<T>, GgufError> = elements
            .enumerate()
            .map(|(i, x)| T::try_from(x).map_err(|_| bad(key, format!("{x} at index {i}"), needed)))
            .collect();
        numbers.map(Some)
    }

    /// The value of `key` as `get` sees it; `needed` says what `get` accepts.
    fn read<'a, T>(
        &'a self,
        key: &str,
        needed: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match get(value) {
            Some(x) => Ok(Some(x)),
            None => Err(bad(key, value.describe(), needed)),
        }
    }
}

fn required<T>(key: &str, value: Option<T>, needed: &'static str) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey {
        key: shown(key),
        needed,
    })
}

fn bad(key: &str, found: String, needed: impl Into<String>) -> GgufError {
    GgufError::BadValue {
        key: shown(key),
        found,
        needed: needed.into(),
    }
}

/// Why `key` cannot be a metadata key, if it cannot.
///
/// The format says lower-snake segments joined by dots; real files also have dashes, capitals and
/// slashes, so every printable ASCII character but the space is taken.
pub(super) fn key_problem(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        Some("is empty")
    } else if key.len() > usize::from(u16::MAX) {
        Some("is longer than 65535 bytes")
    } else if !key.bytes().all(|b| b.is_ascii_graphic()) {
        Some("has characters other than printable ASCII")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new();
        m.insert("z.first", Value::U8(200));
        m.insert("a.neg", Value::I32(-1));
        m.insert("a.big", Value::U64(1 << 40));
        m.insert("a.f", Value::F64(0.5));
        m.insert("a.nan", Value::F32(f32::NAN));
        m.insert("a.huge", Value::F64(1e300));
        m.insert("a.s", Value::String("text".into()));
        m.insert("a.b", Value::Bool(true));
        m.insert("a.ints", Value::Array(Array::U16(vec![1, 2, 3])));
        m.insert("a.wide", Value::Array(Array::I64(vec![1, i64::MIN])));
        m.insert(
            "a.floats",
            Value::Array(Array::F64(vec![1.5, f64::NEG_INFINITY])),
        );
        m.insert("a.nans", Value::Array(Array::F32(vec![0.0, f32::NAN])));
        m.insert("a.strings", Value::Array(Array::String(vec!["x".into()])));
        m.insert("a.bools", Value::Array(Array::Bool(vec![true, false])));
        m
    }

    #[test]
    fn keeps_insertion_order_and_replaces_in_place() {
        let mut m = sample();
        m.insert("z.first", Value::U8(1));
        m.insert("b.last", Value::U8(2));
        let keys: Vec<&str> = m.iter().map(|(key, _)| key).collect();
        assert_eq!(keys[0], "z.first");
        assert_eq!(keys[keys.len() - 1], "b.last");
        assert_eq!(m.u32("z.first").unwrap(), 1);
        assert_eq!(m.len(), 15);
    }

    #[test]
    fn integers_of_any_type_that_fit() {
        let m = sample();
        assert_eq!(m.u32("z.first").unwrap(), 200);
        assert_eq!(m.u64("a.big").unwrap(), 1 << 40);
        assert!(m.u32("a.big").is_err(), "2^40 is no u32");
        assert!(
            m.u32("a.neg").is_err() && m.u64("a.neg").is_err(),
            "-1 is not unsigned"
        );
        assert!(
            m.u32("a.f").is_err() && m.u32("a.b").is_err(),
            "numbers and bools are no integers"
        );
        assert_eq!(m.i32s("a.ints").unwrap(), [1, 2, 3]);
        assert!(m.i32s("a.wide").is_err(), "i64::MIN is no i32");
        assert!(
            m.i32s("a.floats").is_err() && m.i32s("a.neg").is_err(),
            "not integer arrays"
        );
    }

    #[test]
    fn other_types() {
        let m = sample();
        assert_eq!(m.f32("a.f").unwrap().to_bits(), 0.5f32.to_bits());
        assert!(
            m.f32("a.nan").is_err() && m.f32("a.huge").is_err() && m.f32("z.first").is_err(),
            "not finite f32"
        );
        assert_eq!(m.str("a.s").unwrap(), "text");
        assert!(m.bool("a.b").unwrap(), "stored as true");
        assert_eq!(m.strings("a.strings").unwrap(), ["x".to_owned()]);
        assert_eq!(m.bools("a.bools").unwrap(), [true, false]);
        assert_eq!(m.f32s("a.floats").unwrap(), [1.5, f32::NEG_INFINITY]);
        assert!(
            m.f32s("a.nans").is_err() && m.f32s("a.ints").is_err(),
            "NaN and integers are refused"
        );
    }

    #[test]
    fn absent_keys_are_errors_only_when_required() {
        let m = sample();
        assert_eq!(m.opt_u32("x").unwrap(), None);
        assert_eq!(m.opt_per_layer_u32("x", 3).unwrap(), None);
        assert!(m.opt_str("a.neg").is_err(), "present with another type");
        for error in [
            m.u32("x").unwrap_err(),
            m.strings("x").unwrap_err(),
            m.per_layer_u32("x", 3).unwrap_err(),
        ] {
            assert!(matches!(error, GgufError::MissingKey { .. }), "{error}");
        }
    }

    #[test]
    fn per_layer_values() {
        let m = sample();
        assert_eq!(m.per_layer_u32("z.first", 2).unwrap(), [200, 200]);
        assert_eq!(m.per_layer_u32("a.ints", 3).unwrap(), [1, 2, 3]);
        for n_layers in [0, 2, 4] {
            assert!(m.per_layer_u32("a.ints", n_layers).is_err(), "{n_layers}");
        }
        assert!(
            m.per_layer_u32("z.first", usize::MAX).is_err(),
            "must not allocate"
        );
    }

    #[test]
    fn errors_name_key_found_and_needed() {
        let message = sample().u32("a.neg").unwrap_err().to_string();
        assert_eq!(
            message,
            "metadata key `a.neg` holds i32 -1, needed is an integer from 0 to 4294967295"
        );
        let message = sample().strings("a.ints").unwrap_err().to_string();
        assert!(message.contains("an array of 3 u16"), "{message}");
    }

    #[test]
    fn overrides() {
        let mut m = sample();
        for spec in [
            "a.neg=int:7",
            "a.new=float:2.5",
            "a.b=bool:false",
            "a.s=str:x=y:z",
        ] {
            m.apply_override(spec).unwrap();
        }
        assert_eq!(m.u32("a.neg").unwrap(), 7);
        assert_eq!(m.f32("a.new").unwrap().to_bits(), 2.5f32.to_bits());
        assert!(!m.bool("a.b").unwrap(), "overridden");
        assert_eq!(m.str("a.s").unwrap(), "x=y:z");
        for spec in [
            "",
            "a",
            "a=int",
            "=int:1",
            "a b=int:1",
            "a=int:1.5",
            "a=int:9223372036854775808",
            "a=float:nan",
            "a=bool:1",
            "a=u32:1",
            "general.alignment=int:64",
            "split.no=int:0",
        ] {
            let error = m.apply_override(spec).unwrap_err();
            assert!(
                matches!(error, GgufError::Override { .. }),
                "{spec}: {error}"
            );
        }
    }
}
