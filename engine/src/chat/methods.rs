//! Python's methods on strings, lists and dicts.
//!
//! The compatibility layer of the template engine has the common ones; these are those that it lacks.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Called for a method that the value itself does not have.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // Some methods turn what they are given into text.
    for arg in args {
        super::charge_value(state, arg, 0)?;
    }
    if let Some(text) = value.as_str() {
        match method {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let parts = match separated(text.split_once(separator), separator)? {
                    Some((before, after)) => [before, separator, after],
                    None => [text, "", ""],
                };
                return Ok(Value::from(Tuple::from(parts.map(Value::from))));
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let parts = match separated(text.rsplit_once(separator), separator)? {
                    Some((before, after)) => [before, separator, after],
                    None => ["", "", text],
                };
                return Ok(Value::from(Tuple::from(parts.map(Value::from))));
            }
            "split" if args.first().and_then(Value::as_str) == Some("") => {
                separated(None::<()>, "")?;
            }
            "rsplit" => {
                let (separator, limit): (&str, Option<i64>) = from_args(args)?;
                separated(None::<()>, separator)?;
                let limit = limit.and_then(|n| usize::try_from(n).ok());
                let mut parts: Vec<&str> = match limit {
                    Some(n) => text.rsplitn(n + 1, separator).collect(),
                    None => text.rsplit(separator).collect(),
                };
                parts.reverse();
                return Ok(parts.into_iter().map(Value::from).collect());
            }
            _ => {}
        }
    } else if method == "index" && matches!(value.kind(), ValueKind::Seq) {
        let (wanted,): (&Value,) = from_args(args)?;
        for (item, i) in value.try_iter()?.zip(0_i64..) {
            state.consume_fuel(1)?;
            if item == *wanted {
                return Ok(Value::from(i));
            }
        }
        let message = format!("{wanted} is not in the list");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    } else if method == "copy" && matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        let () = from_args(args)?;
        // Templates cannot change lists and dicts, so a copy is the thing itself.
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// Python refuses to split at an empty separator.
fn separated<T>(parts: Option<T>, separator: &str) -> Result<Option<T>, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(parts)
}
