//! What a template's text needs before minijinja compiles it.

/// The filter put behind what a `for` loops over: refuses what Python cannot iterate.
pub const ITERATED: &str = "_iterated";

/// The filter put behind what a namespace's attribute is set to: bounds what can be piled up there.
pub const STORED: &str = "_stored";

/// Rewrites the block tags that minijinja reads otherwise than Hugging Face's Jinja:
///
/// - `{% generation %}` … `{% endgeneration %}`, which marks the assistant's tokens for training masks and
///   renders its body, becomes a plain scope;
/// - what a `for` loops over goes through the filter [`ITERATED`], as looping over None is an error;
/// - what `set name.attribute =` stores goes through the filter [`STORED`]: namespaces alone outlive a
///   loop's turn, so there a template could nest values until dropping them overflows the stack.
///
/// Comments, strings and raw blocks are left alone, and no line moves.
pub fn adapt(source: &str) -> String {
    // Jinja reads every kind of line end as a newline.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + source.len() / 16);
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => tag_end(tag, "}}"),
            Some(b'%') => {
                let end = tag_end(tag, "%}");
                match &tag[tag_name(&tag[..end])] {
                    "raw" => raw_end(tag, end),
                    _ => {
                        adapt_block(&mut out, &tag[..end]);
                        rest = &tag[end..];
                        continue;
                    }
                }
            }
            _ => 1,
        };
        out.push_str(&tag[..end]);
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

fn adapt_block(out: &mut String, tag: &str) {
    let name = tag_name(tag);
    let (head, tail) = (&tag[..name.start], &tag[name.end..]);
    let mut wrap = |word: &str, range: std::ops::Range<usize>, filter: &str| {
        let (before, after) = (&tail[..range.start], &tail[range.end..]);
        out.extend([head, word, before, "(", &tail[range], ")|", filter, after]);
    };
    match &tag[name] {
        "generation" => out.extend([head, "with", tail]),
        "endgeneration" => out.extend([head, "endwith", tail]),
        "for" => match iterated(tail) {
            Some(range) => wrap("for", range, ITERATED),
            None => out.push_str(tag),
        },
        "set" => match stored(tail) {
            Some(range) => wrap("set", range, STORED),
            None => out.push_str(tag),
        },
        _ => out.push_str(tag),
    }
}

/// A tag's inside, from behind its name.
fn inside(text: &str) -> Option<&str> {
    Some(text.strip_suffix("%}")?.trim_end_matches(['-', '+']).trim_end())
}

/// Where in `set NAME.ATTRIBUTE = WHAT %}`, from behind the `set`, WHAT stands.
fn stored(text: &str) -> Option<std::ops::Range<usize>> {
    let body = inside(text)?;
    let (target, _) = body.split_once('=')?;
    let simple = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c.is_whitespace();
    let range = trimmed(body, target.len() + 1, body.len());
    (target.contains('.') && target.chars().all(simple) && !range.is_empty()).then_some(range)
}

/// Where in `for TARGET in WHAT [if TEST] [recursive] %}`, from behind the `for`, WHAT stands.
fn iterated(text: &str) -> Option<std::ops::Range<usize>> {
    let body = inside(text)?;
    let mut start = None;
    for (at, word) in words(body) {
        match (word, start) {
            ("in", None) => start = Some(at + word.len()),
            ("if" | "recursive", Some(start)) => return Some(trimmed(body, start, at)),
            _ => {}
        }
    }
    start.map(|start| trimmed(body, start, body.len())).filter(|range| !range.is_empty())
}

fn trimmed(text: &str, start: usize, end: usize) -> std::ops::Range<usize> {
    let inner = text[start..end].trim_start();
    let start = end - inner.len();
    start..start + inner.trim_end().len()
}

/// The words of an expression outside brackets and strings, with their offsets.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut depth = 0usize;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            match bytes[at] {
                b'\'' | b'"' => at = string_end(bytes, at),
                b'(' | b'[' | b'{' => (depth, at) = (depth + 1, at + 1),
                b')' | b']' | b'}' => (depth, at) = (depth.saturating_sub(1), at + 1),
                byte if is_word(byte) => {
                    let start = at;
                    at += bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
                    let attribute = text[..start].ends_with(['.', '|']);
                    if depth == 0 && !attribute {
                        return Some((start, &text[start..at]));
                    }
                }
                _ => at += 1,
            }
        }
        None
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Behind the string literal that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut at = at + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Where the tag that begins `text` ends, quotes respected; all of `text` when it never does.
fn tag_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => at = string_end(bytes, at),
            _ if bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            _ => at += 1,
        }
    }
    text.len()
}

/// The range of a block tag's name.
fn tag_name(tag: &str) -> std::ops::Range<usize> {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let start = tag.len() - inner.len();
    let length = inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
    start..start + length
}

/// Where the raw block that begins `text` ends; `body` is the offset behind its opening tag.
fn raw_end(text: &str, body: usize) -> usize {
    let mut at = body;
    while let Some(found) = text[at..].find("{%") {
        let start = at + found;
        let end = start + tag_end(&text[start..], "%}");
        let name = tag_name(&text[start..end]);
        if &text[start..end][name] == "endraw" {
            return end;
        }
        at = start + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::adapt;

    #[test]
    fn tags_become_scopes_and_keep_their_whitespace_marks() {
        let source = "a{%- generation -%}x{% endgeneration +%}b{%generation%}{%  endgeneration %}";
        let want = "a{%- with -%}x{% endwith +%}b{%with%}{%  endwith %}";
        assert_eq!(adapt(source), want);
    }

    #[test]
    fn other_text_is_untouched() {
        for source in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if add_generation_prompt %}generation{% endif %}",
            "{{ 'é generation \\'",
            "{",
            "{% for %}",
            "{% for x in %}",
            "{% for x",
        ] {
            assert_eq!(adapt(source), source);
        }
    }

    #[test]
    fn what_loops_go_over_and_namespaces_store_is_wrapped() {
        for (source, want) in [
            ("{% for x in a %}", "{% for x in (a)|_iterated %}"),
            ("{%- for k, v in d.items() -%}", "{%- for k, v in (d.items())|_iterated -%}"),
            ("{%for x in a if x in b%}", "{%for x in (a)|_iterated if x in b%}"),
            ("{% for x in a.if|if recursive %}", "{% for x in (a.if|if)|_iterated recursive %}"),
            (
                "{% for x in [1 if y else 2, 'if'] if z %}",
                "{% for x in ([1 if y else 2, 'if'])|_iterated if z %}",
            ),
            ("{%- set ns.a = ns.a + [x] -%}", "{%- set ns.a = (ns.a + [x])|_stored -%}"),
            ("{% set a = b.c == 1 %}", "{% set a = b.c == 1 %}"),
            ("{% set ns.a %}", "{% set ns.a %}"),
            ("{% for index in f(\n in=1) %}", "{% for index in (f(\n in=1))|_iterated %}"),
        ] {
            assert_eq!(adapt(source), want);
        }
    }
}
