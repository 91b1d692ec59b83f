//! Request JSON as template values that behave as Python's.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{DynObject, Enumerator, Object, ObjectExt, ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};

use super::{methods, repr};
use crate::integers;

/// Dicts larger than this get a hash index.
const SCAN_LIMIT: usize = 16;

/// A Python dict with string keys, in order of insertion.
///
/// Other than minijinja's own maps it tells `d.items` (the method, as in Jinja, where attributes win)
/// from `d["items"]` (the entry), and prints as Python prints.
#[derive(Debug, Default)]
pub struct Dict {
    entries: Vec<(Value, Value)>,
    index: Option<HashMap<Value, usize>>,
}

impl Dict {
    /// `entries` have string keys, each once.
    pub fn new(entries: Vec<(Value, Value)>) -> Self {
        let index = (entries.len() > SCAN_LIMIT)
            .then(|| entries.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect());
        Self { entries, index }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        match &self.index {
            Some(index) => index.get(&Value::from(key)).map(|&at| &self.entries[at].1),
            None => self.entries.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value),
        }
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if methods::is_dict_method(key) {
            return Some(Value::from_object(BoundMethod {
                owner: Value::from_dyn_object(self.clone()),
                name: key.to_owned(),
            }));
        }
        self.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|this| {
            Box::new(this.entries.iter().map(|(key, value)| (key.clone(), value.clone())))
        })
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        repr::write_unpaid(f, &Value::from_dyn_object(self.clone()))
    }
}

/// A template's variables. No name is a method here.
#[derive(Debug)]
pub struct Variables(Dict);

impl Variables {
    /// `entries`: as those of a [`Dict`].
    pub fn value(entries: Vec<(Value, Value)>) -> Value {
        Value::from_object(Self(Dict::new(entries)))
    }
}

impl Object for Variables {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get(key).cloned()
    }
}

/// A method taken from a dict without calling it.
#[derive(Debug)]
struct BoundMethod {
    owner: Value,
    name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.owner, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// A template's value of request JSON.
pub fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(signed), _) => Value::from(signed),
            (_, Some(unsigned)) => Value::from(unsigned),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        serde_json::Value::Object(entries) => match integers::wrapped(json) {
            Some(digits) => integer(digits),
            None => {
                dict(entries.iter().map(|(key, item)| (Value::from(key.as_str()), from_json(item))).collect())
            }
        },
    }
}

/// An integer of any size.
fn integer(digits: &str) -> Value {
    match digits.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(Integer(digits.to_owned())),
    }
}

/// An integer beyond what minijinja computes with: templates print it.
#[derive(Debug)]
struct Integer(String);

impl Object for Integer {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        (self.0 == other.0).then_some(Ordering::Equal)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a value is an integer that minijinja takes for no number.
pub fn is_big_integer(value: &Value) -> bool {
    value.downcast_object_ref::<Integer>().is_some()
}

/// The number of a float.
pub fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}

/// A Python generator: gives its items once, is always true, has no length and is no JSON.
#[derive(Debug)]
pub struct Generator(Mutex<Vec<Value>>);

impl Generator {
    pub fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }

    /// The items that are left, without using them up.
    pub fn peek(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let mut items = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(std::mem::take(&mut *items))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// A dict value; see [`Dict::new`].
pub fn dict(entries: Vec<(Value, Value)>) -> Value {
    Value::from_object(Dict::new(entries))
}
