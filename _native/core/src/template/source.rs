//! What a template's text needs before minijinja compiles it.

/// Turns Hugging Face's `{% generation %}` … `{% endgeneration %}` into a plain scope.
///
/// The tag marks the assistant's tokens for training masks; rendering it outputs its body. `with` is
/// minijinja's bare scope, as the tag's body is a scope in Jinja too. Comments, strings and raw blocks
/// are left alone.
pub fn neutralise_generation(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => tag_end(tag, "}}"),
            Some(b'%') => {
                let end = tag_end(tag, "%}");
                let name = tag_name(&tag[..end]);
                match &tag[name.clone()] {
                    "raw" => raw_end(tag, end),
                    word @ ("generation" | "endgeneration") => {
                        out.push_str(&tag[..name.start]);
                        out.push_str(if word == "generation" { "with" } else { "endwith" });
                        out.push_str(&tag[name.end..end]);
                        rest = &tag[end..];
                        continue;
                    }
                    _ => end,
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

/// Where the tag that begins `text` ends, quotes respected; all of `text` when it never does.
fn tag_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
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
    use super::neutralise_generation;

    #[test]
    fn tags_become_scopes_and_keep_their_whitespace_marks() {
        let source = "a{%- generation -%}x{% endgeneration +%}b{%generation%}{%  endgeneration %}";
        let want = "a{%- with -%}x{% endwith +%}b{%with%}{%  endwith %}";
        assert_eq!(neutralise_generation(source), want);
    }

    #[test]
    fn other_text_is_untouched() {
        for source in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if add_generation_prompt %}generation{% endif %}",
            "{% generation",
            "{{ 'é generation \\'",
            "{",
        ] {
            assert_eq!(neutralise_generation(source), source);
        }
    }
}
