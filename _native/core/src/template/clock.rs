//! `strftime_now`: Python's `datetime.now().strftime(format)`.

use std::fmt::Write;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local};

/// Formats `now` (Unix seconds, the clock's if None) in local time.
///
/// Directives that C's strftime lacks or that are cut off come out as they stand, as with glibc. Python's
/// `now()` knows no zone, so `%z` and `%Z` are empty.
pub fn strftime_now(format: &str, now: Option<i64>) -> String {
    let time = now
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
        .map_or_else(Local::now, |time| time.with_timezone(&Local));
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let length = directive_length(&rest[at..]);
        let (directive, tail) = rest[at..].split_at(length);
        write_directive(&mut out, directive, &time);
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// The length of the directive that begins `text`: `%`, an optional flag, a letter.
fn directive_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '-' | '_' | '0')) => chars.next().map_or(text.len(), |(at, c)| at + c.len_utf8()),
        Some((at, c)) => at + c.len_utf8(),
        None => text.len(),
    }
}

fn write_directive(out: &mut String, directive: &str, time: &DateTime<Local>) {
    match directive {
        "%z" | "%Z" => return,
        "%f" => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{:06}", time.timestamp_subsec_micros());
            return;
        }
        _ => {}
    }
    let known =
        directive.chars().last().is_some_and(|c| "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%".contains(c));
    let items: Vec<Item> = StrftimeItems::new(directive).collect();
    if !known || items.iter().any(|item| matches!(item, Item::Error)) {
        out.push_str(directive);
        return;
    }
    let _ = write!(out, "{}", time.format_with_items(items.into_iter()));
}

#[cfg(test)]
mod tests {
    use super::strftime_now;

    #[test]
    fn known_directives_are_filled_in() {
        // 2024-07-06 12:00:00 UTC: the same day in every inhabited zone.
        let noon = Some(1_720_267_200);
        assert_eq!(strftime_now("%d %b %Y|%-d %B %y|%%|%A", noon), "06 Jul 2024|6 July 24|%|Saturday");
        assert_eq!(strftime_now("%Y-%m-%d", noon), strftime_now("%F", noon));
        assert_eq!(strftime_now("%z%Z", noon), "");
    }

    #[test]
    fn unknown_directives_stay() {
        for text in ["%", "%Q", "%é", "a%-", "%+", "%v", ""] {
            assert_eq!(strftime_now(text, Some(0)), text);
        }
    }
}
