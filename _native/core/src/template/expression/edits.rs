//! Changes to a text, gathered while it is read.

use crate::template::tokens::Token;

/// A change to the text: at one place what closes comes before what opens, inner before outer and the reverse.
struct Edit {
    at: usize,
    opens: bool,
    text: String,
    removed: usize,
}

/// Changes in the order in which they were found: inner ones before outer ones.
#[derive(Default)]
pub struct Edits(Vec<Edit>);

impl Edits {
    pub fn open(&mut self, at: usize, text: impl Into<String>) {
        self.0.push(Edit { at, opens: true, text: text.into(), removed: 0 });
    }

    pub fn close(&mut self, at: usize, text: impl Into<String>) {
        self.0.push(Edit { at, opens: false, text: text.into(), removed: 0 });
    }

    pub fn replace(&mut self, token: Token, text: &str) {
        let removed = token.end - token.start;
        self.0.push(Edit { at: token.start, opens: false, text: text.into(), removed });
    }

    /// `text` with all changes made.
    pub fn applied(self, text: &str) -> String {
        let order = |index: usize, edit: &Edit| if edit.opens { -(index as i64) } else { index as i64 };
        let mut sorted: Vec<(usize, bool, i64, Edit)> = self
            .0
            .into_iter()
            .enumerate()
            .map(|(index, edit)| (edit.at, edit.opens, order(index, &edit), edit))
            .collect();
        sorted.sort_by_key(|(at, opens, order, _)| (*at, *opens, *order));
        let mut out = String::with_capacity(text.len() * 2);
        let mut copied = 0;
        for (at, _, _, edit) in &sorted {
            out.push_str(&text[copied.min(*at)..*at]);
            out.push_str(&edit.text);
            copied = (*at + edit.removed).max(copied);
        }
        out.push_str(&text[copied..]);
        out
    }
}
