//! Python's methods of dict and list, and the door to those of str.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::strings;

/// Names that are attributes of every Python dict. The ones that change it can be named, not called:
/// the sandbox chat templates run in forbids that.
pub fn is_dict_method(name: &str) -> bool {
    matches!(
        name,
        "items"
            | "keys"
            | "values"
            | "get"
            | "copy"
            | "fromkeys"
            | "pop"
            | "popitem"
            | "clear"
            | "update"
            | "setdefault"
    )
}

/// Calls method `name` of a built-in type; minijinja asks here for every method it does not know.
pub fn call(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => strings::call(state, value.as_str().unwrap_or_default(), name, args),
        ValueKind::Map => call_dict(state, value, name, args),
        ValueKind::Seq | ValueKind::Iterable => call_list(state, value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn call_dict(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    if name == "get" {
        let (key, default): (&Value, Option<Value>) = from_args(args)?;
        return Ok(object.get_value(key).or(default).unwrap_or_else(|| Value::from(())));
    }
    if !matches!(name, "items" | "keys" | "values" | "copy") {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    let () = from_args(args)?;
    state.consume_fuel(value.len().unwrap_or(0) as u64)?;
    let pairs = object.try_iter_pairs().into_iter().flatten();
    Ok(match name {
        "keys" => Value::from(pairs.map(|(key, _)| key).collect::<Vec<_>>()),
        "values" => Value::from(pairs.map(|(_, item)| item).collect::<Vec<_>>()),
        "items" => {
            Value::from(pairs.map(|(key, item)| Value::from(Tuple::from([key, item]))).collect::<Vec<_>>())
        }
        // Nothing can change a dict here, so a copy is the dict.
        _ => value.clone(),
    })
}

fn call_list(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "count" | "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let mut found = 0usize;
            for (at, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if item? != *wanted {
                    continue;
                }
                if name == "index" {
                    return Ok(Value::from(at));
                }
                found += 1;
            }
            if name == "index" {
                return Err(Error::new(ErrorKind::InvalidOperation, "value is not in list"));
            }
            Ok(Value::from(found))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
