//! Expressions as Jinja reads them, rewritten where minijinja reads or prices them otherwise.
//!
//! A recursive descent over Jinja's grammar that copies the text and changes it in these places, always to a
//! filter, since a filter cannot be shadowed by a variable:
//!
//! | written | becomes | because |
//! |---|---|---|
//! | `a ~ b` | [`TEXT`] on both | floats and containers print as Python prints them, and pay before |
//! | `a == b`, `a in b` … | [`WEIGHED`] on both | comparing walks what is nested, and shared parts again and again |
//! | `a\|sort`, `a\|upper` … | [`ORDERED`], [`PRINTED`] before | they walk what is nested, for nothing |
//! | `a[i]` | [`INDEXED`] on `a` | finding the i-th character costs the text's length |
//! | `a[i:j]` | [`SLICE`] | minijinja's slices are views of views |
//! | `a % b` | [`MOD`] | `%` formats when `a` is a string |
//! | `+a` | [`POSITIVE`] | minijinja knows no unary plus |
//! | `a + b` beside `\|safe` | [`ADD`] | Markup escapes what is added to it |
//! | `a, b` | `(a, b)` | a tuple needs no parentheses in Jinja |
//! | `'\/'` … | `'\\/'` | escapes are Python's in Jinja; see [`text`] |

mod edits;
mod operands;
mod text;

use super::tokens::{Fault, Kind, Parsed, Token, tokens};
use edits::Edits;

pub const ADD: &str = "_add";
pub const MOD: &str = "_mod";
pub const POSITIVE: &str = "_positive";
pub const SLICE: &str = "_slice";
pub const TEXT: &str = "_text";
pub const WEIGHED: &str = "_weighed";
pub const INDEXED: &str = "_indexed";
pub const ORDERED: &str = "_ordered";
pub const PRINTED: &str = "_printed";

/// What is nested or chained deeper than this is refused: compilers and trees are walked by recursion.
const MAX_DEPTH: usize = 100;
const MAX_CHAIN: usize = 500;

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
    edits: Edits,
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
        Ok(Self { text, tokens, at: 0, depth: 0, edits: Edits::default(), markup, names: Names::default() })
    }

    /// The changed text and the names it uses. Errors: something is left that nothing has read.
    pub fn finish(self) -> Parsed<(String, Names)> {
        if self.at < self.tokens.len() {
            return Err("unexpected text behind the expression");
        }
        Ok((self.edits.applied(self.text), self.names))
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

    /// Puts `node` through a filter.
    pub fn filtered(&mut self, start: usize, end: usize, filter: &str) {
        self.edits.open(start, "((");
        self.edits.close(end, format!(")|{filter})"));
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
        self.edits.open(first.start, "(");
        self.edits.close(end, ")");
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
                self.edits.close(left.end, "))");
            } else if plus {
                if !adding {
                    self.edits.open(left.start, "((");
                }
                self.edits.replace(token, if adding { "," } else { &first });
            }
            adding = plus;
            node = Node { end: self.concatenation()?.end, literal: false, ..left };
        }
        if adding {
            self.edits.close(node.end, "))");
        }
        Ok(node)
    }

    /// `a OPERATOR b` as `((a)|FILTER(b))`.
    fn called(&mut self, node: Node, operator: Token, filter: &str) {
        self.edits.open(node.start, "((");
        self.edits.replace(operator, &format!(")|{filter}("));
        self.edits.close(node.end, "))");
    }

    fn is_quoted(&self, node: &Node) -> bool {
        node.literal && matches!(self.text.as_bytes()[node.start], b'\'' | b'"')
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
            if !self.is_quoted(node) {
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
            self.edits.open(start, "((");
            self.edits.replace(sign, "");
            self.edits.close(node.end, format!(")|{POSITIVE})"));
        }
        Ok(Node { start, ..node })
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
        let mut known = Vec::new();
        while !self.next_is(")") {
            let name = self.name()?;
            if self.take("=") {
                self.apart_from(&known, |this| this.condition().map(drop))?;
            }
            known.push(name);
            if !self.take(",") {
                break;
            }
        }
        self.expect(")", "a parenthesis is not closed")?;
        Ok(())
    }

    /// Reads what must not name any of `others`: in a `with` minijinja sees them too early, in a macro too late.
    pub fn apart_from(&mut self, others: &[&str], read: impl FnOnce(&mut Self) -> Parsed<()>) -> Parsed<()> {
        let before = self.names.variables.len();
        read(self)?;
        let used = &self.names.variables[before..];
        if used.iter().any(|name| others.contains(&name.as_str())) {
            return Err("a value that depends on one beside it is not supported");
        }
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
