//! Expressions as Jinja reads them, rewritten where minijinja reads or prices them otherwise.
//!
//! A recursive descent over Jinja's grammar that copies the text and changes it in these places, always to a
//! filter, since a filter cannot be shadowed by a variable:
//!
//! | written | becomes | because |
//! |---|---|---|
//! | `a ~ b` | [`TEXT`] on both | containers print as Python prints them, and pay before they are printed |
//! | `a == b`, `a in b` … | [`WEIGHED`] on both | comparing walks what is nested, and shared parts again and again |
//! | `a\|sort`, `a\|upper` … | [`ORDERED`], [`PRINTED`] before | they walk what is nested, for nothing |
//! | `a[i]` | [`INDEXED`] on `a` | finding the i-th character costs the text's length |
//! | `a[i:j]` | [`SLICE`] | minijinja's slices are views of views |
//! | `a % b` | [`MOD`] | `%` formats when `a` is a string |
//! | `+a` | [`POSITIVE`] | minijinja knows no unary plus |
//! | `a + b` beside `\|safe` | [`ADD`] | Markup escapes what is added to it |
//! | `a, b` | `(a, b)` | a tuple needs no parentheses in Jinja |

use super::tokens::{Fault, Kind, Parsed, Token, string_end, tokens};

pub const ADD: &str = "_add";
pub const MOD: &str = "_mod";
pub const POSITIVE: &str = "_positive";
pub const SLICE: &str = "_slice";
pub const TEXT: &str = "_text";
pub const WEIGHED: &str = "_weighed";
pub const INDEXED: &str = "_indexed";
pub const ORDERED: &str = "_ordered";
pub const PRINTED: &str = "_printed";

/// Filters that compare all items with each other, and those that make text of what they get.
const ORDERING: [&str; 7] = ["sort", "unique", "min", "max", "groupby", "dictsort", "sum"];
const PRINTING: [&str; 9] =
    ["upper", "lower", "title", "capitalize", "replace", "indent", "join", "format", "wordcount"];
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

/// What is nested or chained deeper than this is refused: compilers and trees are walked by recursion.
const MAX_DEPTH: usize = 100;
const MAX_CHAIN: usize = 500;

/// A change to the text: at one place what closes comes before what opens, inner before outer and the reverse.
struct Edit {
    at: usize,
    opens: bool,
    text: String,
    removed: usize,
}

/// Names that expressions use; what is unknown can be told before a client asks.
#[derive(Debug, Default)]
pub struct Names {
    pub filters: Vec<String>,
    pub tests: Vec<String>,
    pub variables: Vec<String>,
    /// There was an inline `if`.
    pub branch: bool,
}

/// Reads one tag's inside. Every `parse_*` leaves the reader behind what it read.
pub struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
    edits: Vec<Edit>,
    /// Whether [`ADD`] is needed.
    markup: bool,
    pub names: Names,
}

/// What is known of a node that was read.
#[derive(Clone, Copy)]
struct Node {
    start: usize,
    end: usize,
    /// A literal, or a list or tuple of them: comparing with it costs next to nothing.
    literal: bool,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str, markup: bool) -> Parsed<Self> {
        let tokens = tokens(text)?;
        Ok(Self { text, tokens, at: 0, depth: 0, edits: Vec::new(), markup, names: Names::default() })
    }

    /// The changed text and the names it uses. Errors: something is left that nothing has read.
    pub fn finish(mut self) -> Parsed<(String, Names)> {
        if self.at < self.tokens.len() {
            return Err("unexpected text behind the expression");
        }
        let order = |index: usize, edit: &Edit| if edit.opens { -(index as i64) } else { index as i64 };
        let mut sorted: Vec<(usize, bool, i64, Edit)> = self
            .edits
            .drain(..)
            .enumerate()
            .map(|(index, edit)| (edit.at, edit.opens, order(index, &edit), edit))
            .collect();
        sorted.sort_by_key(|(at, opens, order, _)| (*at, *opens, *order));
        let mut out = String::with_capacity(self.text.len() * 2);
        let mut copied = 0;
        for (at, _, _, edit) in &sorted {
            out.push_str(&self.text[copied.min(*at)..*at]);
            out.push_str(&edit.text);
            copied = (*at + edit.removed).max(copied);
        }
        out.push_str(&self.text[copied..]);
        Ok((out, self.names))
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn ahead(&self, count: usize) -> Option<&'a str> {
        self.tokens.get(self.at + count).map(|token| token.text)
    }

    pub fn next_is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.kind != Kind::Text && token.text == text)
    }

    pub fn take(&mut self, text: &str) -> bool {
        let found = self.next_is(text);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str, fault: Fault) -> Parsed<Token<'a>> {
        let token =
            self.peek().filter(|token| token.kind != Kind::Text && token.text == text).ok_or(fault)?;
        self.at += 1;
        Ok(token)
    }

    pub fn name(&mut self) -> Parsed<&'a str> {
        let token = self.peek().filter(|token| token.kind == Kind::Name).ok_or("a name is expected")?;
        self.at += 1;
        Ok(token.text)
    }

    pub fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    fn behind(&self) -> usize {
        self.at.checked_sub(1).map_or(0, |last| self.tokens[last].end)
    }

    fn here(&self) -> usize {
        self.peek().map_or(self.text.len(), |token| token.start)
    }

    fn open(&mut self, at: usize, text: impl Into<String>) {
        self.edits.push(Edit { at, opens: true, text: text.into(), removed: 0 });
    }

    fn close(&mut self, at: usize, text: impl Into<String>) {
        self.edits.push(Edit { at, opens: false, text: text.into(), removed: 0 });
    }

    fn replace(&mut self, token: Token, text: &str) {
        let removed = token.end - token.start;
        self.edits.push(Edit { at: token.start, opens: false, text: text.into(), removed });
    }

    /// Puts `node` through a filter.
    pub fn filtered(&mut self, start: usize, end: usize, filter: &str) {
        self.open(start, "((");
        self.close(end, format!(")|{filter})"));
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("nested too deeply");
        }
        let done = read(self);
        self.depth -= 1;
        done
    }

    /// An expression, or several as a tuple; the range it spans.
    pub fn tuple(&mut self) -> Parsed<(usize, usize)> {
        self.tuple_of(Self::condition)
    }

    /// The same without an inline `if`, as behind a `for`'s `in`.
    pub fn tuple_without_if(&mut self) -> Parsed<(usize, usize)> {
        self.tuple_of(Self::or)
    }

    fn tuple_of(&mut self, read: fn(&mut Self) -> Parsed<Node>) -> Parsed<(usize, usize)> {
        let first = read(self)?;
        if !self.next_is(",") {
            return Ok((first.start, first.end));
        }
        while self.take(",") && !self.at_end() && !self.closes() {
            read(self)?;
        }
        let end = self.behind();
        self.open(first.start, "(");
        self.close(end, ")");
        Ok((first.start, end))
    }

    fn closes(&self) -> bool {
        [")", "]", "}", "=", "if", "recursive"].iter().any(|text| self.next_is(text))
    }

    pub fn expression(&mut self) -> Parsed<(usize, usize)> {
        self.condition().map(|node| (node.start, node.end))
    }

    fn condition(&mut self) -> Parsed<Node> {
        self.deeper(|this| {
            let mut node = this.or()?;
            let mut links = 0;
            while this.take("if") {
                chain(&mut links)?;
                this.names.branch = true;
                this.or()?;
                if this.take("else") {
                    this.condition()?;
                }
                node = Node { end: this.behind(), literal: false, ..node };
            }
            Ok(node)
        })
    }

    fn or(&mut self) -> Parsed<Node> {
        self.chained(&["or"], |this| this.chained(&["and"], Self::not))
    }

    /// Operands between operators that need no change.
    fn chained(&mut self, operators: &[&str], read: impl Fn(&mut Self) -> Parsed<Node>) -> Parsed<Node> {
        let mut node = read(self)?;
        let mut links = 0;
        while operators.iter().any(|operator| self.next_is(operator)) {
            chain(&mut links)?;
            self.at += 1;
            node = Node { end: read(self)?.end, literal: false, ..node };
        }
        Ok(node)
    }

    fn not(&mut self) -> Parsed<Node> {
        let start = self.here();
        if !self.take("not") {
            return self.comparison();
        }
        let node = self.deeper(Self::not)?;
        Ok(Node { start, ..node })
    }

    fn comparison(&mut self) -> Parsed<Node> {
        let first = self.sum()?;
        let mut nodes = vec![first];
        loop {
            if self.next_is("not") && self.ahead(1) == Some("in") {
                self.at += 2;
            } else if ["==", "!=", "<", "<=", ">", ">=", "in"].iter().any(|operator| self.next_is(operator)) {
                self.at += 1;
            } else {
                break;
            }
            nodes.push(self.sum()?);
            within(nodes.len())?;
        }
        if nodes.len() == 1 {
            return Ok(first);
        }
        if !nodes.iter().any(|node| node.literal) {
            for node in &nodes {
                self.filtered(node.start, node.end, WEIGHED);
            }
        }
        Ok(Node { start: first.start, end: self.behind(), literal: false })
    }

    fn sum(&mut self) -> Parsed<Node> {
        let mut node = self.concatenation()?;
        let mut links = 0;
        // `a + b + c` is one call: nesting is dear to minijinja's parser.
        let first = format!(")|{ADD}(");
        let mut adding = false;
        while let Some(token) = self.peek().filter(|token| matches!(token.text, "+" | "-")) {
            chain(&mut links)?;
            self.at += 1;
            let left = node;
            let plus = self.markup && token.text == "+";
            if adding && !plus {
                self.close(left.end, "))");
            } else if plus {
                if !adding {
                    self.open(left.start, "((");
                }
                self.replace(token, if adding { "," } else { &first });
            }
            adding = plus;
            node = Node { end: self.concatenation()?.end, literal: false, ..left };
        }
        if adding {
            self.close(node.end, "))");
        }
        Ok(node)
    }

    /// `a OPERATOR b` as `((a)|FILTER(b))`.
    fn called(&mut self, node: Node, operator: Token, filter: &str) {
        self.open(node.start, "((");
        self.replace(operator, &format!(")|{filter}("));
        self.close(node.end, "))");
    }

    fn concatenation(&mut self) -> Parsed<Node> {
        let first = self.product()?;
        let mut nodes = vec![first];
        while self.take("~") {
            nodes.push(self.product()?);
            within(nodes.len())?;
        }
        if nodes.len() == 1 {
            return Ok(first);
        }
        for node in &nodes {
            if !node.literal {
                self.filtered(node.start, node.end, TEXT);
            }
        }
        Ok(Node { start: first.start, end: self.behind(), literal: false })
    }

    fn product(&mut self) -> Parsed<Node> {
        let power = |this: &mut Self| this.chained(&["**"], Self::unary);
        let mut node = power(self)?;
        let mut links = 0;
        while let Some(token) = self
            .peek()
            .filter(|token| token.kind == Kind::Operator && matches!(token.text, "*" | "/" | "//" | "%"))
        {
            chain(&mut links)?;
            self.at += 1;
            let right = power(self)?;
            node = Node { end: right.end, literal: false, ..node };
            if token.text == "%" {
                self.called(node, token, MOD);
            }
        }
        Ok(node)
    }

    fn unary(&mut self) -> Parsed<Node> {
        let node = self.signed()?;
        self.filters(node)
    }

    fn signed(&mut self) -> Parsed<Node> {
        let start = self.here();
        let Some(sign) = self.peek().filter(|token| matches!(token.text, "+" | "-")) else {
            let node = self.primary()?;
            return self.postfix(node);
        };
        self.at += 1;
        let node = self.deeper(Self::signed)?;
        if sign.text == "+" {
            self.open(start, "((");
            self.replace(sign, "");
            self.close(node.end, format!(")|{POSITIVE})"));
        }
        Ok(Node { start, ..node })
    }

    fn primary(&mut self) -> Parsed<Node> {
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
                while self.peek().is_some_and(|token| token.kind == Kind::Text) {
                    self.at += 1;
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

    fn postfix(&mut self, mut node: Node) -> Parsed<Node> {
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
            this.open(node.start, "((");
            let none = |given: bool| if given { "" } else { "none" };
            this.replace(open, &format!(")|{SLICE}({}", none(given[0])));
            for (part, colon) in colons.iter().enumerate() {
                this.replace(*colon, &format!(",{}", none(given[part + 1])));
            }
            this.replace(close, "))");
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
    fn filters(&mut self, mut node: Node) -> Parsed<Node> {
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
                    self.close(bar, format!("|{before}"));
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

    /// The names in a `set`'s, `for`'s or `with`'s target.
    pub fn target(&mut self) -> Parsed<bool> {
        let mut attribute = false;
        loop {
            if self.take("(") {
                self.deeper(Self::target)?;
                self.expect(")", "a parenthesis is not closed")?;
            } else {
                self.name()?;
                if self.take(".") {
                    attribute = true;
                    self.name()?;
                }
            }
            if !self.take(",") || self.next_is("=") || self.next_is("in") || self.next_is(")") {
                return Ok(attribute);
            }
        }
    }

    /// A macro's parameters with their defaults.
    pub fn parameters(&mut self) -> Parsed<()> {
        self.expect("(", "a parenthesis is expected")?;
        while !self.next_is(")") {
            self.name()?;
            if self.take("=") {
                self.condition()?;
            }
            if !self.take(",") {
                break;
            }
        }
        self.expect(")", "a parenthesis is not closed")?;
        Ok(())
    }

    /// An assignment's right side.
    pub fn assigned(&mut self) -> Parsed<(usize, usize)> {
        self.expect("=", "an equals sign is expected")?;
        self.tuple()
    }
}

fn chain(links: &mut usize) -> Parsed<()> {
    *links += 1;
    within(*links)
}

fn within(links: usize) -> Parsed<()> {
    if links > MAX_CHAIN { Err("too long a chain of operators") } else { Ok(()) }
}
