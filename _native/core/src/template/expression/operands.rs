//! Operands of expressions, and what stands behind them: attributes, subscripts, calls, filters and tests.

use super::{INDEXED, Node, ORDERED, PRINTED, Reader, SLICE, WEIGHED, chain, text};
use crate::template::tokens::{Kind, Parsed, Token, string_end};

/// Filters that compare all items with each other, and those that make text of what they get.
const ORDERING: [&str; 7] = ["sort", "unique", "min", "max", "groupby", "dictsort", "sum"];
const PRINTING: [&str; 8] =
    ["upper", "lower", "title", "capitalize", "replace", "indent", "format", "wordcount"];
/// Tests that walk what they get.
const WALKING: [&str; 15] = [
    "eq",
    "equalto",
    "ne",
    "lt",
    "lessthan",
    "le",
    "gt",
    "greaterthan",
    "ge",
    "in",
    "sameas",
    "lower",
    "upper",
    "number",
    "divisibleby",
];

impl Reader<'_> {
    pub(super) fn primary(&mut self) -> Parsed<Node> {
        let token = self.peek().ok_or("the expression is cut off")?;
        let start = token.start;
        match (token.kind, token.text) {
            (Kind::Name, name) => {
                self.at += 1;
                let literal = matches!(name, "true" | "True" | "false" | "False" | "none" | "None");
                if !literal {
                    self.names.variables.push(name.to_owned());
                }
                Ok(Node { start, end: token.end, literal })
            }
            (Kind::Text, _) => {
                while let Some(token) = self.peek().filter(|token| token.kind == Kind::Text) {
                    self.at += 1;
                    self.quoted(token)?;
                }
                Ok(Node { start, end: self.behind(), literal: true })
            }
            (Kind::Number, _) => {
                self.at += 1;
                Ok(Node { start, end: token.end, literal: true })
            }
            (_, "(") => self.items(")", |this| this.condition()),
            (_, "[") => self.items("]", |this| this.condition()),
            (_, "{") => self.items("}", |this| {
                let key = this.condition()?;
                if !key.literal {
                    this.filtered(key.start, key.end, WEIGHED);
                }
                this.expect(":", "a dict's key needs a value")?;
                this.condition()
            }),
            _ => Err("an expression is expected"),
        }
    }

    /// Rewrites a text between its quotes, where no other change can be.
    fn quoted(&mut self, token: Token) -> Parsed<()> {
        let quote = token.text.chars().next().unwrap_or_default();
        let inside = token.text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inside) = inside.filter(|inside| inside.contains('\\')) {
            let inner = Token { start: token.start + 1, end: token.end - 1, ..token };
            self.edits.replace(inner, &text::escapes(inside, quote)?);
        }
        Ok(())
    }

    /// A bracketed list of what `read` reads.
    fn items(&mut self, end: &str, read: fn(&mut Self) -> Parsed<Node>) -> Parsed<Node> {
        let start = self.here();
        self.at += 1;
        self.deeper(|this| {
            let mut literal = end != "}";
            while !this.next_is(end) {
                literal &= read(this)?.literal;
                if !this.take(",") {
                    break;
                }
            }
            let close = this.expect(end, "a bracket is not closed")?;
            Ok(Node { start, end: close.end, literal })
        })
    }

    pub(super) fn postfix(&mut self, mut node: Node) -> Parsed<Node> {
        let mut links = 0;
        let mut method = "";
        loop {
            if self.take(".") {
                let name = self.peek().filter(|token| token.kind != Kind::Operator);
                method = name.ok_or("an attribute has a name")?.text;
                self.at += 1;
            } else if self.next_is("[") {
                self.subscript(node)?;
            } else if self.next_is("(") {
                self.arguments(matches!(method, "changed" | "index" | "count" | "get" | "format"))?;
            } else {
                return Ok(node);
            }
            chain(&mut links)?;
            node = Node { end: self.behind(), literal: false, ..node };
        }
    }

    fn subscript(&mut self, node: Node) -> Parsed<()> {
        let open = self.expect("[", "a bracket is expected")?;
        self.deeper(|this| {
            let mut colons = Vec::new();
            let mut given = [false; 4];
            let mut literal = false;
            while !this.next_is("]") {
                if let Some(colon) =
                    this.peek().filter(|token| token.kind == Kind::Operator && token.text == ":")
                {
                    this.at += 1;
                    colons.push(colon);
                    if colons.len() > 2 {
                        return Err("a slice has three parts");
                    }
                } else if given[colons.len()] {
                    return Err("unexpected text in a subscript");
                } else {
                    given[colons.len()] = true;
                    let read = if colons.is_empty() { Self::tuple } else { Self::expression };
                    let (start, end) = read(this)?;
                    let text = &this.text.as_bytes()[start..end];
                    literal = matches!(text.first(), Some(b'\'' | b'"')) && string_end(text, 0) == text.len();
                }
            }
            let close = this.expect("]", "a bracket is not closed")?;
            if colons.is_empty() {
                if !given[0] {
                    return Err("a subscript is empty");
                }
                if !literal {
                    this.filtered(node.start, node.end, INDEXED);
                }
                return Ok(());
            }
            this.edits.open(node.start, "((");
            let none = |given: bool| if given { "" } else { "none" };
            this.edits.replace(open, &format!(")|{SLICE}({}", none(given[0])));
            for (part, colon) in colons.iter().enumerate() {
                this.edits.replace(*colon, &format!(",{}", none(given[part + 1])));
            }
            this.edits.replace(close, "))");
            Ok(())
        })
    }

    /// A call's arguments; `weighed` if what is called walks them.
    fn arguments(&mut self, weighed: bool) -> Parsed<()> {
        self.expect("(", "a parenthesis is expected")?;
        self.deeper(|this| {
            while !this.next_is(")") {
                let spread = this.take("**") || this.take("*");
                if !spread {
                    let named = this.peek().is_some_and(|token| token.kind == Kind::Name);
                    if named && this.ahead(1) == Some("=") {
                        this.at += 2;
                    }
                }
                let node = this.condition()?;
                if weighed && !spread && !node.literal {
                    this.filtered(node.start, node.end, WEIGHED);
                }
                if !this.take(",") {
                    break;
                }
            }
            this.expect(")", "a parenthesis is not closed")?;
            Ok(())
        })
    }

    /// Filters, tests and calls behind an operand.
    pub(super) fn filters(&mut self, mut node: Node) -> Parsed<Node> {
        let mut links = 0;
        loop {
            if self.next_is("|") {
                let bar = self.here();
                self.at += 1;
                let name = self.dotted()?;
                let prints = PRINTING.contains(&name.as_str());
                let before = if prints { Some(PRINTED) } else { None };
                let before = before.or_else(|| ORDERING.contains(&name.as_str()).then_some(ORDERED));
                if let Some(before) = before {
                    self.edits.close(bar, format!("|{before}"));
                }
                self.names.filters.push(name);
                if self.next_is("(") {
                    self.arguments(prints)?;
                }
            } else if self.take("is") {
                if self.test()? && !node.literal {
                    self.filtered(node.start, node.end, WEIGHED);
                }
            } else if self.next_is("(") {
                self.arguments(false)?;
            } else {
                return Ok(node);
            }
            chain(&mut links)?;
            node = Node { end: self.behind(), literal: false, ..node };
        }
    }

    /// A filter block's filters, the first without its bar.
    pub fn filter_chain(&mut self) -> Parsed<()> {
        let start = self.here();
        let name = self.dotted()?;
        self.names.filters.push(name);
        if self.next_is("(") {
            self.arguments(false)?;
        }
        self.filters(Node { start, end: start, literal: false })?;
        Ok(())
    }

    fn dotted(&mut self) -> Parsed<String> {
        let mut name = self.name()?.to_owned();
        while self.take(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name)
    }

    /// A test; whether it walks its operand.
    fn test(&mut self) -> Parsed<bool> {
        self.take("not");
        let name = self.dotted()?;
        let walks = WALKING.contains(&name.as_str());
        self.names.tests.push(name);
        if self.next_is("(") {
            self.arguments(walks)?;
            return Ok(walks);
        }
        let Some(token) = self.peek() else { return Ok(walks) };
        let keyword = matches!(token.text, "if" | "else" | "or" | "and" | "in" | "not" | "is" | "recursive");
        let begins = match token.kind {
            Kind::Operator => matches!(token.text, "[" | "{"),
            Kind::Name => !keyword,
            Kind::Text | Kind::Number => true,
        };
        if begins {
            let node = self.primary()?;
            let node = self.postfix(node)?;
            if walks && !node.literal {
                self.filtered(node.start, node.end, WEIGHED);
            }
        }
        Ok(walks)
    }
}
