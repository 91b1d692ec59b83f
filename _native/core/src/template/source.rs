//! What a template's text needs before minijinja compiles it.

use super::expression::{Names, Reader};
use super::tokens::{Fault, string_end};

/// The filter put behind what a `for` loops over: refuses what Python cannot iterate.
pub const ITERATED: &str = "_iterated";

/// The filter put behind what a namespace's attribute is set to: bounds what can be piled up there.
pub const STORED: &str = "_stored";

/// Filters that make or keep Markup, which escapes what is added to it.
const MARKUP: [&str; 4] = ["safe", "e", "escape", "forceescape"];

/// `elif` tags of one `if`.
const MAX_ALTERNATIVES: usize = 500;

/// A template as minijinja should compile it.
#[derive(Debug)]
pub struct Adapted {
    pub text: String,
    /// What the template names, each with the line of its tag, outside of branches: Jinja lets a branch name what
    /// does not exist, until it is taken.
    pub names: Vec<(usize, Names)>,
    /// The first expression that Jinja would not read, with its line.
    pub fault: Option<(usize, Fault)>,
}

/// Rewrites what minijinja reads otherwise than Hugging Face's Jinja:
///
/// - a line end behind `{% raw %}` stays, as behind no other tag;
/// - `{% generation %}` … `{% endgeneration %}`, which marks the assistant's tokens for training masks and
///   renders its body, becomes a plain scope;
/// - what a `for` loops over goes through the filter [`ITERATED`], as looping over None is an error;
/// - what `set name.attribute =` stores goes through the filter [`STORED`]: namespaces alone outlive a
///   loop's turn, so there a template could nest values until dropping them overflows the stack;
/// - expressions, as [`super::expression`] says.
///
/// Comments, strings and raw blocks are left alone, and no line moves.
pub fn adapt(source: &str) -> Adapted {
    // Jinja reads every kind of line end as a newline.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let markup = source.contains('|') && MARKUP.iter().any(|filter| has_filter(&source, filter));
    let mut adapter = Adapter { out: String::with_capacity(source.len() * 2), markup, ..Adapter::default() };
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        adapter.copy(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => {
                let end = tag_end(tag, "}}");
                adapter.variable(&tag[..end]);
                rest = &tag[end..];
                continue;
            }
            Some(b'%') => {
                let end = tag_end(tag, "%}");
                rest = match &tag[tag_name(&tag[..end])] {
                    "raw" => adapter.raw(tag, end),
                    _ => {
                        adapter.block(&tag[..end]);
                        &tag[end..]
                    }
                };
                continue;
            }
            _ => 1,
        };
        adapter.copy(&tag[..end]);
        rest = &tag[end..];
    }
    adapter.copy(rest);
    Adapted { text: adapter.out, names: adapter.names, fault: adapter.fault }
}

fn has_filter(source: &str, filter: &str) -> bool {
    source.match_indices(filter).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        source[..at].trim_end().ends_with(['|', '\'', '"']) && !source[at + filter.len()..].starts_with(word)
            || source[..at].trim_end().ends_with("filter")
    })
}

#[derive(Default)]
struct Adapter {
    out: String,
    lines: usize,
    markup: bool,
    /// How many `if` blocks are open.
    branches: usize,
    /// The `elif` tags of each of them.
    alternatives: Vec<usize>,
    /// How many macros are open.
    macros: usize,
    names: Vec<(usize, Names)>,
    fault: Option<(usize, Fault)>,
}

impl Adapter {
    fn copy(&mut self, text: &str) {
        self.lines += text.matches('\n').count();
        self.out.push_str(text);
    }

    /// `{{ … }}`.
    fn variable(&mut self, tag: &str) {
        let start = tag.len() - tag[2..].trim_start_matches(['-', '+']).len();
        self.body(tag, start.min(tag.len()), "}}", |reader| reader.tuple().map(drop));
    }

    /// Rewrites a tag's inside from `start` on by what `read` reads.
    fn body(
        &mut self,
        tag: &str,
        start: usize,
        close: &str,
        read: impl FnOnce(&mut Reader) -> Result<(), Fault>,
    ) {
        let line = self.lines + 1;
        self.lines += tag.matches('\n').count();
        let end = tag.strip_suffix(close).map(|text| text.strip_suffix(['-', '+']).unwrap_or(text).len());
        let Some(end) = end.filter(|end| start <= *end) else {
            self.out.push_str(tag);
            return;
        };
        let done = Reader::new(&tag[start..end], self.markup).and_then(|mut reader| {
            read(&mut reader)?;
            reader.finish()
        });
        match done {
            Ok((text, names)) => {
                self.out.extend([&tag[..start], &text, &tag[end..]]);
                self.note(line, names);
            }
            Err(fault) => {
                self.out.push_str(tag);
                self.fault.get_or_insert((line, fault));
            }
        }
    }

    fn note(&mut self, line: usize, names: Names) {
        let rest = |name: &String| matches!(name.as_str(), "varargs" | "kwargs");
        if self.macros > 0 && names.variables.iter().any(rest) {
            self.fault.get_or_insert((line, "varargs and kwargs of macros are not supported"));
        }
        if self.branches == 0 && !names.branch {
            self.names.push((line, names));
        }
    }

    /// The raw block that begins `text`, whose opening tag ends at `open`; what is behind it.
    fn raw<'t>(&mut self, text: &'t str, open: usize) -> &'t str {
        let (tag, body) = text.split_at(open);
        match tag.strip_suffix("%}").filter(|tag| body.starts_with('\n') && !tag.ends_with(['-', '+'])) {
            Some(tag) => self.copy(&[tag, "+%}"].concat()),
            None => self.copy(tag),
        }
        let (body, rest) = text.split_at(raw_end(text, open));
        self.copy(&body[open..]);
        rest
    }

    /// Compilers nest one `elif` in the other.
    fn alternative(&mut self) {
        let Some(count) = self.alternatives.last_mut() else { return };
        *count += 1;
        if *count > MAX_ALTERNATIVES {
            self.fault.get_or_insert((self.lines + 1, "too many alternatives"));
        }
    }

    fn block(&mut self, tag: &str) {
        let name = tag_name(tag);
        let start = name.end;
        match &tag[name.clone()] {
            "generation" => self.copy(&[&tag[..name.start], "with", &tag[name.end..]].concat()),
            "endgeneration" => self.copy(&[&tag[..name.start], "endwith", &tag[name.end..]].concat()),
            "for" => self.body(tag, start, "%}", read_for),
            "set" => self.body(tag, start, "%}", read_set),
            "if" => {
                self.body(tag, start, "%}", |reader| reader.tuple().map(drop));
                self.branches += 1;
                self.alternatives.push(0);
            }
            "elif" => {
                self.body(tag, start, "%}", |reader| reader.tuple().map(drop));
                self.alternative();
            }
            "endif" => {
                self.copy(tag);
                self.alternatives.pop();
                self.branches = self.branches.saturating_sub(1);
            }
            "macro" => {
                self.macros += 1;
                self.body(tag, start, "%}", |reader| {
                    reader.name()?;
                    reader.parameters()
                });
            }
            "endmacro" => {
                self.copy(tag);
                self.macros = self.macros.saturating_sub(1);
            }
            "call" => self.body(tag, start, "%}", |reader| {
                if reader.next_is("(") {
                    reader.parameters()?;
                }
                reader.expression().map(drop)
            }),
            "filter" => self.body(tag, start, "%}", |reader| reader.filter_chain()),
            "with" => self.body(tag, start, "%}", read_with),
            "do" => {
                self.fault.get_or_insert((self.lines + 1, "Encountered unknown tag 'do'"));
                self.copy(tag);
            }
            _ => self.copy(tag),
        }
    }
}

/// `TARGET in WHAT [if TEST] [recursive]`.
fn read_for(reader: &mut Reader) -> Result<(), Fault> {
    reader.target()?;
    if !reader.take("in") {
        return Err("a for loop needs 'in'");
    }
    let (start, end) = reader.tuple_without_if()?;
    reader.filtered(start, end, ITERATED);
    if reader.take("if") {
        reader.expression()?;
    }
    reader.take("recursive");
    Ok(())
}

/// `TARGET = WHAT`, or a block's `TARGET [| FILTER …]`.
fn read_set(reader: &mut Reader) -> Result<(), Fault> {
    let attribute = reader.target()?;
    if reader.take("|") {
        return reader.filter_chain();
    }
    if reader.at_end() {
        return Ok(());
    }
    let (start, end) = reader.assigned()?;
    if attribute {
        reader.filtered(start, end, STORED);
    }
    Ok(())
}

/// `TARGET = WHAT, …`.
fn read_with(reader: &mut Reader) -> Result<(), Fault> {
    let mut targets = Vec::new();
    while !reader.at_end() {
        let target = reader.name()?;
        if !reader.take("=") {
            return Err("an equals sign is expected");
        }
        reader.apart_from(&targets, |reader| reader.expression().map(drop))?;
        targets.push(target);
        if !reader.take(",") {
            break;
        }
    }
    Ok(())
}

/// Where the tag that begins `text` ends, quotes and brackets respected; all of `text` when it never does.
fn tag_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 2;
    let mut depth = 0usize;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => {
                at = string_end(bytes, at);
                continue;
            }
            _ if depth == 0 && bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
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

    fn adapted(source: &str) -> String {
        let adapted = adapt(source);
        assert_eq!(adapted.fault, None, "{source}");
        adapted.text
    }

    #[test]
    fn tags_become_scopes_and_keep_their_whitespace_marks() {
        let source = "a{%- generation -%}x{% endgeneration +%}b{%generation%}{%  endgeneration %}";
        let want = "a{%- with -%}x{% endwith +%}b{%with%}{%  endwith %}";
        assert_eq!(adapted(source), want);
    }

    #[test]
    fn other_text_is_untouched() {
        for source in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if add_generation_prompt %}generation{% endif %}",
            "{{- -1 -}}{{ {'a': {'b': 1}} }}{{ a.b['c'](d, e=f)|g(1) is h }}",
            "{% set a, b = c %}{% set x %}{% endset %}{% with a = 1, b = 2 %}{% endwith %}",
            "{% macro m(a, b='c') %}{% endmacro %}{% call(x) m(1) %}{% endcall %}{% filter trim %}{% endfilter %}",
            "{{ a == 'b' and 1 < c or d in ['e', 'f'] and not g is none }}",
            "{{ 1.5e+3 + x }}{{ 'a' 'b' }}",
            "{",
        ] {
            assert_eq!(adapted(source), source);
        }
    }

    #[test]
    fn what_minijinja_reads_otherwise_is_put_through_filters() {
        for (source, want) in [
            ("{% for x in a %}", "{% for x in ((a)|_iterated) %}"),
            ("{%- for k, v in d.items() -%}", "{%- for k, v in ((d.items())|_iterated) -%}"),
            ("{%for x in a if x in 'b'%}", "{%for x in ((a)|_iterated) if x in 'b'%}"),
            ("{% for x in a.if|if recursive %}", "{% for x in ((a.if|if)|_iterated) recursive %}"),
            ("{% for x in 1, 2 %}", "{% for x in (((1, 2))|_iterated) %}"),
            ("{%- set ns.a = ns.a + [x] -%}", "{%- set ns.a = ((ns.a + [x])|_stored) -%}"),
            ("{% set a = b.c == 1 %}", "{% set a = b.c == 1 %}"),
            ("{% set a = 1, %}", "{% set a = (1,) %}"),
            ("{{ a ~ b.c ~ 'd' }}", "{{ ((a)|_text) ~ ((b.c)|_text) ~ 'd' }}"),
            ("{{ 1.5e+3 ~ [1] ~ 'd' 'e' }}", "{{ ((1.5e+3)|_text) ~ (([1])|_text) ~ 'd' 'e' }}"),
            ("{{ a == b }}", "{{ ((a)|_weighed) == ((b)|_weighed) }}"),
            ("{{ a[b]['c'][0] }}", "{{ ((((a)|_indexed)[b]['c'])|_indexed)[0] }}"),
            ("{{ a[1:] }}{{ a[:-1] }}", "{{ ((a)|_slice(1,none)) }}{{ ((a)|_slice(none,-1)) }}"),
            ("{{ a[::-1] }}", "{{ ((a)|_slice(none,none,-1)) }}"),
            ("{{ '%s' % a * 2 }}", "{{ (('%s' )|_mod( a)) * 2 }}"),
            ("{{ +1 }}", "{{ ((1)|_positive) }}"),
            ("{{ a|safe + b + c - d }}", "{{ ((a|safe )|_add( b , c)) - d }}"),
        ] {
            assert_eq!(adapted(source), want);
        }
    }

    #[test]
    fn what_jinja_does_not_read_is_told_with_its_line() {
        for source in [
            "{{ a b }}",
            "{{ }}",
            "{% if %}",
            "{% for x in %}",
            "{% for x %}",
            "{{ a[] }}",
            "{{ (a }}",
            "{{ a | }}",
            "{{ {'a'} }}",
            "{% macro m() %}{{ varargs }}{% endmacro %}",
            "{% do a %}",
        ] {
            let fault = adapt(&format!("\n{source}")).fault;
            assert_eq!(fault.map(|(line, _)| line), Some(2), "{source}");
        }
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
        let long = format!("{{{{ 1{} }}}}", " + 1".repeat(5000));
        assert!(adapt(&deep).fault.is_some() && adapt(&long).fault.is_some());
    }

    #[test]
    fn names_in_branches_are_no_ones_business() {
        let adapted = adapt("{{ a|f is t }}{% if a %}{{ b|g }}{% endif %}{{ c|h if d }}");
        let names: Vec<_> = adapted.names.iter().flat_map(|(_, names)| &names.filters).collect();
        assert_eq!(names, ["f"]);
    }
}
