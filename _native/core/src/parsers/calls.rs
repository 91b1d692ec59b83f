//! Calls on their way out: which of them, under which index, with which arguments so far.

use std::sync::Arc;

use super::{Sink, Tools};

/// Hands calls to a sink. One call at a time.
#[derive(Debug)]
pub struct Calls {
    pub tools: Arc<Tools>,
    next: u32,
    /// The call under way; None: there is none, or it is not shown.
    index: Option<u32>,
    name: String,
    begun: bool,
    empty: bool,
}

impl Calls {
    pub fn new(tools: Arc<Tools>) -> Self {
        Self { tools, next: 0, index: None, name: String::new(), begun: false, empty: true }
    }

    /// May a call of this name come out?
    pub fn accepts(&self, name: &str) -> bool {
        self.tools.forward_unknown || self.tools.knows(name)
    }

    /// A call has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.begun
    }

    /// The tool of the call under way, shown or not.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins a call. It is read but not shown if no such tool exists, or if one call is all that may come.
    pub fn begin(&mut self, name: &str, sink: &mut dyn Sink) {
        self.begun = true;
        self.empty = true;
        name.clone_into(&mut self.name);
        let shown = self.accepts(name) && (self.tools.parallel || self.next == 0);
        self.index = shown.then_some(self.next);
        if let Some(index) = self.index {
            self.next += 1;
            sink.call(index, name);
        }
    }

    pub fn arguments(&mut self, fragment: &str, sink: &mut dyn Sink) {
        if fragment.is_empty() {
            return;
        }
        self.empty = false;
        if let Some(index) = self.index {
            sink.arguments(index, fragment);
        }
    }

    /// What has begun, unseen, is no call.
    pub fn abandon(&mut self) {
        self.begun = false;
        self.index = None;
    }

    /// Ends the call. One without arguments has an empty object of them.
    pub fn end(&mut self, sink: &mut dyn Sink) {
        if self.begun && self.empty {
            self.arguments("{}", sink);
        }
        self.abandon();
    }
}
