//! What a tool call format is made of. The formats themselves are data: see [`super::formats`].

/// A tool call format: how a model writes calls between its prose.
#[derive(Debug)]
pub struct ToolFormat {
    pub name: &'static str,
    /// Other names under which settings may ask for it.
    pub aliases: &'static [&'static str],
    /// Markers that are single tokens of the models' vocabularies. Where one of them is a special token its text
    /// must reach the parser; other special tokens stay hidden.
    pub tokens: &'static [&'static str],
    pub syntax: Syntax,
}

#[derive(Debug)]
pub enum Syntax {
    /// Text has no calls.
    None,
    Frames(Frames),
    Harmony,
}

/// Calls inside frames of markers, and bare ones.
#[derive(Debug)]
pub struct Frames {
    pub frames: &'static [Frame],
    /// Calls without any frame.
    pub bare: Bare,
    /// Markers that frame nothing that matters.
    pub erase: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    No,
    /// A JSON object or array of calls that begins the text or follows a call.
    JsonFirst,
    /// The same, and a constraint says that the text is calls: other tools' are dropped.
    JsonOnly,
    /// The same as `JsonFirst` anywhere in the text.
    Json,
    /// `[name(key=value), …]` anywhere in the text.
    Python,
}

/// One way to write a block of calls: `open (call name body end)* close`.
#[derive(Debug)]
pub struct Frame {
    /// What begins a block.
    pub open: &'static [&'static str],
    /// What begins a call in a block; none: a call follows `open` or the call before.
    pub call: &'static [&'static str],
    /// A call may also come outside a block.
    pub lone: bool,
    pub head: Head,
    pub body: Body,
    /// What ends a call; skipped wherever it stands between calls.
    pub end: &'static [&'static str],
    /// What ends the block.
    pub close: &'static [&'static str],
}

/// Where a call's name is.
#[derive(Debug)]
pub enum Head {
    /// In a JSON object with the arguments, or several of these in an array.
    Json,
    /// Before the body, up to a marker.
    Name(Name),
    /// As JSON if that begins with `{` or `[`, else before the body.
    Either(Name),
}

#[derive(Debug)]
pub struct Name {
    pub ends: &'static [&'static str],
    /// The same, for markers that belong to the body.
    pub stops: &'static [&'static str],
    /// `functions.NAME:IDX` and the like: the name is the part between.
    pub clean: fn(&str) -> &str,
}

/// How arguments are written after a name.
#[derive(Debug)]
pub enum Body {
    Json,
    Parameters(Parameters),
}

/// One parameter after the other, each in markers: `open key key_end (attributes >)? value_open? value close`.
#[derive(Debug)]
pub struct Parameters {
    pub open: &'static [&'static str],
    pub key_end: &'static [&'static str],
    /// Attributes follow the key, up to `>`; `string="true"` and `"false"` there tell the value's type.
    pub attributes: bool,
    pub value_open: &'static [&'static str],
    pub close: &'static [&'static str],
    /// Where a value without `close` ends; these are not part of it.
    pub stops: &'static [&'static str],
    pub trim: Trim,
    /// A JSON object may stand in place of the parameters.
    pub json: bool,
}

/// What does not belong to a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    Nothing,
    /// One newline at each side.
    Newline,
    Blanks,
}
