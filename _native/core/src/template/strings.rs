//! Python's str methods.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Python's `str.isspace` for one character: Unicode's white space and the four ASCII separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()` without arguments.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The characters to strip. A long list of them must not cost its length for each character of the text.
pub struct CharSet(Vec<char>);

impl CharSet {
    pub fn new(chars: &str) -> Self {
        let mut set: Vec<char> = chars.chars().collect();
        set.sort_unstable();
        set.dedup();
        Self(set)
    }

    pub fn contains(&self, c: char) -> bool {
        self.0.binary_search(&c).is_ok()
    }
}

/// Calls `str` method `name`.
pub fn call(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "strip" | "lstrip" | "rstrip" => strip_method(text, name, args),
        "split" | "rsplit" => split_method(text, name, args),
        "replace" => replace(state, text, args),
        "startswith" | "endswith" => affix(state, text, name, args),
        "find" | "rfind" | "index" | "rindex" | "count" => {
            pay(state, text.len())?;
            search(text, name, args)
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(state, text, name, args),
        "join" => join(state, text, args),
        "format" => {
            check_widths(text)?;
            let longest = args.iter().filter_map(|arg| arg.as_str()).map(str::len).max().unwrap_or(0);
            pay(state, text.matches('{').count().saturating_mul(longest.max(64)))?;
            format(FormatStyle::StrFormat, text, args).map(Value::from)
        }
        "splitlines" => splitlines(text, args),
        "partition" | "rpartition" => partition(text, name, args),
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let cut =
                if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Ok(Value::from(cut.unwrap_or(text)))
        }
        "expandtabs" => expandtabs(state, text, args),
        _ => {
            // Done character by character: dearer than what the engine charges for a method.
            pay(state, 8 * text.len())?;
            let known = change_case(text, name).or_else(|| classify(text, name));
            let known = known.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
            let () = from_args(args)?;
            Ok(known)
        }
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Pays for `bytes` about to be made; the engine charges only for what is finished.
fn pay(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / 64) as u64)
}

/// An argument by position or by keyword; None if neither is there or it is None.
fn argument<'a>(given: Option<&'a Value>, options: &'a Kwargs, name: &str) -> Result<Option<Value>, Error> {
    let value = match given {
        Some(value) => Some(value.clone()),
        None if options.has(name) => options.get::<Option<Value>>(name)?,
        None => None,
    };
    Ok(value.filter(|value| !value.is_none()))
}

/// Refuses a format whose widths or precisions would fill the memory.
fn check_widths(text: &str) -> Result<(), Error> {
    let fields = text.split('{').skip(1).map(|field| field.split('}').next().unwrap_or_default());
    let specs = fields.filter_map(|field| Some(field.split_once(':')?.1));
    for spec in specs {
        if spec.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4) {
            return Err(bad("format: width or precision is too large"));
        }
    }
    Ok(())
}

fn strip_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let set = chars.map(CharSet::new);
    let matches = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(Value::from(match name {
        "strip" => text.trim_matches(matches),
        "lstrip" => text.trim_start_matches(matches),
        _ => text.trim_end_matches(matches),
    }))
}

fn split_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, options): (Option<&Value>, Option<&Value>, Kwargs) = from_args(args)?;
    let separator = argument(separator, &options, "sep")?;
    let limit = argument(limit, &options, "maxsplit")?;
    options.assert_all_used()?;
    let limit = match limit {
        Some(limit) => usize::try_from(i64::try_from(limit)?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let from_end = name == "rsplit";
    let Some(separator) = separator else {
        let parts = if from_end { rsplit_blank(text, limit) } else { split_blank(text, limit) };
        return Ok(parts.into_iter().map(Value::from).collect());
    };
    let separator = separator.as_str().ok_or_else(|| bad("must be str or None"))?;
    if separator.is_empty() {
        return Err(bad("empty separator"));
    }
    let pieces = limit.saturating_add(1);
    if !from_end {
        return Ok(text.splitn(pieces, separator).map(Value::from).collect());
    }
    let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `str.split(None, limit)`.
fn split_blank(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

/// `str.rsplit(None, limit)`.
fn rsplit_blank(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let word = rest.trim_end_matches(|c| !is_space(c));
        parts.push(&rest[word.len()..]);
        rest = word.trim_end_matches(is_space);
    }
    parts.reverse();
    parts
}

fn replace(state: &State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (old, new, count, options): (&str, &str, Option<&Value>, Kwargs) = from_args(args)?;
    let count = argument(count, &options, "count")?;
    options.assert_all_used()?;
    let count = match count {
        Some(count) => usize::try_from(i64::try_from(count)?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let most = (text.len() / old.len().max(1) + 1).min(count);
    pay(state, most.saturating_mul(new.len().saturating_sub(old.len())))?;
    Ok(Value::from(text.replacen(old, new, count)))
}

fn affix(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    if start.is_some() || end.is_some() {
        pay(state, 4 * text.len())?;
    }
    let Some(text) = window(text, start, end) else { return Ok(Value::from(false)) };
    let test = |wanted: &Value| match wanted.as_str() {
        Some(wanted) if name == "startswith" => Ok(text.starts_with(wanted)),
        Some(wanted) => Ok(text.ends_with(wanted)),
        None => Err(bad(format!("{name} first arg must be str or a tuple of str"))),
    };
    if !wanted.is_tuple() {
        return test(wanted).map(Value::from);
    }
    for choice in wanted.try_iter()?.checked() {
        if test(&choice?)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// `text[start:end]` in characters; None where Python finds nothing, not even the empty string.
fn window(text: &str, start: Option<i64>, end: Option<i64>) -> Option<&str> {
    if start.is_none() && end.is_none() {
        return Some(text);
    }
    let length = text.chars().count() as i64;
    let place = |index: i64| if index < 0 { (length + index).max(0) } else { index.min(length) };
    if start.unwrap_or(0) > length {
        return None;
    }
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)));
    if start > end {
        return None;
    }
    let offset = |index: i64| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Some(&text[offset(start)..offset(end)])
}

fn search(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let part = window(text, start, end);
    if name == "count" {
        return Ok(Value::from(part.map_or(0, |part| part.matches(wanted).count())));
    }
    let found = part.and_then(|part| {
        let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) }?;
        let before = part.as_ptr() as usize - text.as_ptr() as usize + at;
        Some(text[..before].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("index") => Err(bad("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn pad(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let length = text.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    let mut fill_chars = fill.unwrap_or(if name == "zfill" { "0" } else { " " }).chars();
    let (Some(fill), None) = (fill_chars.next(), fill_chars.next()) else {
        return Err(bad("The fill character must be exactly one character long"));
    };
    pay(state, missing.saturating_mul(fill.len_utf8()))?;
    let run = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(match name {
        "ljust" => text.to_owned() + &run(missing),
        "rjust" => run(missing) + text,
        "zfill" => match text.strip_prefix(['+', '-']) {
            Some(digits) => text[..1].to_owned() + &run(missing) + digits,
            None => run(missing) + text,
        },
        _ => {
            // CPython puts the odd one out to the left when the width is odd.
            let left = missing / 2 + (missing & width as usize & 1);
            run(left) + text + &run(missing - left)
        }
    }))
}

fn join(state: &State, separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    if matches!(items.kind(), ValueKind::None | ValueKind::Undefined) {
        return Err(bad("can only join an iterable"));
    }
    let texts = items.try_iter()?.checked().enumerate().map(|(index, item)| {
        let item = item?;
        match item.kind() {
            ValueKind::String => Ok(item),
            kind => Err(bad(format!("sequence item {index}: expected str instance, {kind} found"))),
        }
    });
    joined(state, separator, texts).map(Value::from)
}

/// `texts` with `separator` between them.
pub fn joined(
    state: &State,
    separator: &str,
    texts: impl Iterator<Item = Result<Value, Error>>,
) -> Result<String, Error> {
    let mut out = String::new();
    for (index, text) in texts.enumerate() {
        let text = text?;
        let text = text.as_str().unwrap_or_default();
        state.consume_fuel(1 + ((separator.len() + text.len()) / 64) as u64)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(out)
}

/// Where Python's `splitlines` breaks.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, options): (Option<&Value>, Kwargs) = from_args(args)?;
    let keep = argument(keep, &options, "keepends")?.is_some_and(|flag| flag.is_true());
    options.assert_all_used()?;
    Ok(lines(text, keep).into_iter().map(Value::from).collect())
}

/// `str.splitlines`, with the line ends if `keep`.
pub fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_line_end) {
        let ending = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep { end + ending } else { end }]);
        rest = &rest[end + ending..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn partition(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(bad("empty separator"));
    }
    let (found, missing) = match name {
        "partition" => (text.split_once(separator), [text, "", ""]),
        _ => (text.rsplit_once(separator), ["", "", text]),
    };
    let parts = found.map_or(missing, |(head, tail)| [head, separator, tail]);
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn expandtabs(state: &State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (size,): (Option<i64>,) = from_args(args)?;
    let size = usize::try_from(size.unwrap_or(8)).unwrap_or(0);
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let blanks = if size > 0 { size - column % size } else { 0 };
                pay(state, blanks)?;
                out.extend(std::iter::repeat_n(' ', blanks));
                column += blanks;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            _ => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(Value::from(out))
}

fn change_case(text: &str, name: &str) -> Option<Value> {
    Some(Value::from(match name {
        "upper" => text.to_uppercase(),
        "lower" | "casefold" => text.to_lowercase(),
        "capitalize" => {
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            first + &chars.as_str().to_lowercase()
        }
        "title" => {
            let mut inside = false;
            let mut out = String::with_capacity(text.len());
            for c in text.chars() {
                if inside {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
                inside = c.is_lowercase() || c.is_uppercase();
            }
            out
        }
        "swapcase" => {
            let mut out = String::with_capacity(text.len());
            for c in text.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
            }
            out
        }
        _ => return None,
    }))
}

fn classify(text: &str, name: &str) -> Option<Value> {
    let every = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let (lower, upper) = (text.chars().any(char::is_lowercase), text.chars().any(char::is_uppercase));
    Some(Value::from(match name {
        "islower" => lower && !upper,
        "isupper" => upper && !lower,
        "isspace" => every(is_space),
        "isdigit" | "isdecimal" => every(|c| c.is_numeric() && (!c.is_ascii() || c.is_ascii_digit())),
        "isnumeric" => every(char::is_numeric),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(super::repr::is_printable),
        "isidentifier" => {
            let mut chars = text.chars();
            chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
                && chars.all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => return None,
    }))
}
