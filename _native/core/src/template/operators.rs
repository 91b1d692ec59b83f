//! What [`super::expression`] puts in the place of operators.

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::value::{Generator, as_float};
use super::{builtins, expression, repr};

pub fn install(env: &mut Environment<'static>) {
    env.add_filter(expression::ADD, add);
    env.add_filter(expression::MOD, modulo);
    env.add_filter(expression::POSITIVE, positive);
    env.add_filter(expression::SLICE, slice);
    env.add_filter(expression::TEXT, text);
    env.add_filter(expression::WEIGHED, weighed);
    env.add_filter(expression::INDEXED, indexed);
    env.add_filter(expression::ORDERED, ordered);
    env.add_filter(expression::PRINTED, printable);
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    bad(format!("unsupported operand types for {operator}: {} and {}", left.kind(), right.kind()))
}

/// What `~` joins. The engine has charged for strings.
fn text(state: &State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) if !value.is_safe() => Ok(value.clone()),
        Some(text) => Ok(Value::from(text)),
        None => repr::to_text(value, state).map(Value::from),
    }
}

/// A value that is about to be compared: pays for all that a comparison may walk.
fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    weigh(&value, 0, state)?;
    Ok(value)
}

/// Pays for `value` and all that is nested in it. Errors: fuel used up, nesting beyond [`repr::MAX_DEPTH`].
pub fn weigh(value: &Value, depth: usize, state: &State) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return state.consume_fuel((text.len() / 64) as u64);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
        || value.downcast_object_ref::<Generator>().is_some()
    {
        return Ok(());
    }
    if depth > repr::MAX_DEPTH {
        return Err(bad("value is nested too deeply"));
    }
    state.consume_fuel(1)?;
    if value.kind() == ValueKind::Map {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        for (key, item) in pairs.into_iter().flatten() {
            state.consume_fuel(1)?;
            weigh(&key, depth + 1, state)?;
            weigh(&item, depth + 1, state)?;
        }
        return Ok(());
    }
    for (index, item) in value.try_iter()?.checked().enumerate() {
        if index % 2 == 0 {
            state.consume_fuel(1)?;
        }
        weigh(&item?, depth + 1, state)?;
    }
    Ok(())
}

/// A value that is about to be indexed by what may be a number: what is lazy is walked up to there.
fn indexed(state: &State, value: Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Iterable && value.downcast_object_ref::<Generator>().is_none() {
        state.consume_fuel((value.len().unwrap_or(0) / 2) as u64)?;
    }
    Ok(value)
}

/// What is about to be ordered: pays for each item as often as it may be compared.
fn ordered(state: &State, value: Value) -> Result<Value, Error> {
    let length = value.len().unwrap_or(0);
    for _ in 0..=length.checked_ilog2().unwrap_or(0) {
        weigh(&value, 0, state)?;
    }
    Ok(value)
}

/// What is about to be made a text, which only Python's printing gets right.
fn printable(state: &State, value: Value) -> Result<Value, Error> {
    weigh(&value, 0, state)?;
    builtins::string(state, &value)
}

/// `left + right …` where Markup may be among them.
fn add(state: &State, left: Value, others: Rest<Value>) -> Result<Value, Error> {
    others.iter().try_fold(left, |left, right| add_two(state, &left, right))
}

fn add_two(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        state.consume_fuel(((a.len() + b.len()) / 64) as u64)?;
        if !left.is_safe() && !right.is_safe() {
            return Ok(Value::from([a, b].concat()));
        }
        let mut out = String::with_capacity(a.len() + b.len());
        for (value, text) in [(left, a), (right, b)] {
            if value.is_safe() { out.push_str(text) } else { builtins::push_escaped(&mut out, text) }
        }
        return Ok(Value::from_safe_string(out));
    }
    let listed = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if listed(left) && listed(right) && left.is_tuple() == right.is_tuple() {
        let mut items = Vec::new();
        for item in left.try_iter()?.checked().chain(right.try_iter()?.checked()) {
            state.consume_fuel(1)?;
            items.push(item?);
        }
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    match (number(left), number(right)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            a.checked_add(b).map(Value::from).ok_or_else(|| bad("the sum is too large"))
        }
        (Some(a), Some(b)) => Ok(Value::from(a.float() + b.float())),
        _ => Err(unsupported("+", left, right)),
    }
}

enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    #[expect(clippy::cast_precision_loss, reason = "as Python's float(int)")]
    fn float(&self) -> f64 {
        match self {
            Self::Int(number) => *number as f64,
            Self::Float(number) => *number,
        }
    }
}

fn number(value: &Value) -> Option<Number> {
    if let Some(number) = as_float(value) {
        return Some(Number::Float(number));
    }
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number => i128::try_from(value.clone()).ok().map(Number::Int),
        _ => None,
    }
}

/// `left % right`: printf of a string, the remainder of a number.
fn modulo(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        return printf(state, left, &right);
    }
    match (number(&left), number(&right)) {
        (Some(Number::Int(_)), Some(Number::Int(0))) => Err(bad("integer modulo by zero")),
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let rest = a.wrapping_rem(b);
            Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        (Some(a), Some(b)) if b.float() != 0.0 => {
            let (a, b) = (a.float(), b.float());
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        _ => Err(unsupported("%", &left, &right)),
    }
}

fn printf(state: &mut State, format: Value, right: &Value) -> Result<Value, Error> {
    let mut args = vec![format];
    if right.is_tuple() {
        for item in right.try_iter()?.checked() {
            args.push(printed(state, item?)?);
        }
    } else {
        args.push(printed(state, right.clone())?);
    }
    let text = args[0].as_str().unwrap_or_default().replace("%%", "");
    if right.kind() != ValueKind::Map && args.len() - 1 > text.matches('%').count() {
        return Err(bad("not all arguments converted during string formatting"));
    }
    state.apply_filter("format", &args)
}

/// An argument of a format: what only Python's printing gets right becomes text. A dict stays, for its keys.
pub fn printed(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::None | ValueKind::Undefined => {
            repr::to_text(&value, state).map(Value::from)
        }
        ValueKind::Map => {
            weigh(&value, 0, state)?;
            Ok(value)
        }
        _ => Ok(value),
    }
}

/// `+value`.
fn positive(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => Ok(value),
        kind => Err(bad(format!("bad operand type for unary +: {kind}"))),
    }
}

/// `value[start:stop:step]`.
fn slice(
    state: &State,
    value: Value,
    start: Option<Value>,
    stop: Option<Value>,
    step: Option<Value>,
) -> Result<Value, Error> {
    let whole = |part: Option<Value>| match part.filter(|part| !part.is_none()) {
        None => Ok(None),
        Some(part) => match number(&part) {
            Some(Number::Int(number)) => {
                Ok(Some(number.clamp(i128::from(i64::MIN) + 1, i128::from(i64::MAX)) as i64))
            }
            _ => Err(bad("slice indices must be integers or None")),
        },
    };
    let (start, stop, step) = (whole(start)?, whole(stop)?, whole(step)?.unwrap_or(1));
    if step == 0 {
        return Err(bad("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let cut = slice_text(text, start, stop, step);
        return Ok(if value.is_safe() { Value::from_safe_string(cut) } else { Value::from(cut) });
    }
    let sliced = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && value.downcast_object_ref::<Generator>().is_none();
    if !sliced {
        return Err(bad(format!("value of type {} cannot be sliced", value.kind())));
    }
    state.consume_fuel((value.len().unwrap_or(0) / 4) as u64)?;
    let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    let cut: Vec<Value> = indices(items.len(), start, stop, step).map(|at| items[at].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(cut)) } else { Value::from(cut) })
}

fn slice_text(text: &str, start: Option<i64>, stop: Option<i64>, step: i64) -> String {
    if step == 1 {
        let length = if text.is_ascii() { text.len() } else { text.chars().count() };
        let range = indices(length, start, stop, step);
        let (skipped, taken) = (range.first, range.left);
        if text.is_ascii() {
            return text.get(skipped as usize..skipped as usize + taken).unwrap_or_default().to_owned();
        }
        return text.chars().skip(skipped as usize).take(taken).collect();
    }
    let chars: Vec<char> = text.chars().collect();
    indices(chars.len(), start, stop, step).map(|at| chars[at]).collect()
}

/// The indices of Python's slice of a sequence of `length`.
struct Indices {
    first: i64,
    left: usize,
    step: i64,
}

impl Iterator for Indices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.first;
        self.first = at.saturating_add(self.step);
        usize::try_from(at).ok()
    }
}

fn indices(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Indices {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |given: i64| {
        let from_start = if given < 0 { given.saturating_add(length) } else { given };
        from_start.clamp(least, most)
    };
    let (begin, end) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let first = start.map_or(begin, bound);
    let end = stop.map_or(end, bound);
    let distance = if step > 0 { end.saturating_sub(first) } else { first.saturating_sub(end) };
    let left = if distance <= 0 { 0 } else { (distance as u64 - 1) / step.unsigned_abs() + 1 };
    Indices { first, left: left as usize, step }
}
