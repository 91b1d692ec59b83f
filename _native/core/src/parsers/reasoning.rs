//! Taking a model's thinking out of its text.

use super::Sink;
use super::harmony::Harmony;
use super::scan::Markers;

/// How a model marks its thinking.
#[derive(Debug)]
pub struct ReasoningFormat {
    pub name: &'static str,
    /// Other names under which settings may ask for it.
    pub aliases: &'static [&'static str],
    /// Markers that are single tokens of the models' vocabularies; see [`super::ToolFormat::tokens`].
    pub tokens: &'static [&'static str],
    /// The model thinks whether or not its prompt says so.
    pub always: bool,
    syntax: Syntax,
}

#[derive(Debug)]
enum Syntax {
    None,
    Tags(Tags),
    Harmony,
}

impl ReasoningFormat {
    /// The thinking, in a pair of tags, comes before the answer and nowhere else.
    pub fn is_tagged(&self) -> bool {
        matches!(self.syntax, Syntax::Tags(_))
    }
}

/// `open thinking close answer`
#[derive(Debug)]
struct Tags {
    open: &'static str,
    close: &'static str,
    /// What ends the thinking too, if the model forgets to close it, and belongs to the answer. Special tokens, or
    /// a call's marker on a line of its own, as SGLang takes it: a model may think about any text.
    cut: &'static [&'static str],
}

const fn format(
    name: &'static str,
    aliases: &'static [&'static str],
    always: bool,
    cut: &'static [&'static str],
) -> ReasoningFormat {
    let syntax = Syntax::Tags(Tags { open: "<think>", close: "</think>", cut });
    ReasoningFormat { name, aliases, tokens: &["<think>", "</think>"], always, syntax }
}

/// How a call begins where its marker is no special token.
const CALL_LINE: &[&str] = &["\n<tool_call>\n"];

static FORMATS: &[ReasoningFormat] = &[
    ReasoningFormat {
        name: "passthrough",
        aliases: &["none"],
        tokens: &[],
        always: false,
        syntax: Syntax::None,
    },
    format("base", &["deepseek_v31", "deepseek-v3", "kimi_k25"], false, &[]),
    format("deepseek_r1", &["deepseek-r1"], true, &[]),
    format("qwen3", &[], false, CALL_LINE),
    format("qwen3_thinking", &["qwen3-thinking"], true, CALL_LINE),
    ReasoningFormat {
        name: "kimi",
        aliases: &[],
        tokens: &["◁think▷", "◁/think▷"],
        always: false,
        syntax: Syntax::Tags(Tags {
            open: "◁think▷",
            close: "◁/think▷",
            cut: &["<|tool_calls_section_begin|>"],
        }),
    },
    format("kimi_k2", &["kimi_thinking"], true, &["<|tool_calls_section_begin|>"]),
    format("glm45", &["glm47"], false, &["\n<tool_call>"]),
    format("step3", &[], true, &["<｜tool_calls_begin｜>"]),
    format("minimax", &["minimax_m2", "minimax-m2"], true, &[]),
    ReasoningFormat {
        name: "cohere",
        aliases: &["cohere_cmd", "cohere_command4"],
        tokens: &["<|START_THINKING|>", "<|END_THINKING|>"],
        always: false,
        syntax: Syntax::Tags(Tags {
            open: "<|START_THINKING|>",
            close: "<|END_THINKING|>",
            cut: &["<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"],
        }),
    },
    ReasoningFormat {
        name: "mistral",
        aliases: &["magistral"],
        tokens: &["[THINK]", "[/THINK]"],
        always: false,
        syntax: Syntax::Tags(Tags { open: "[THINK]", close: "[/THINK]", cut: &["[TOOL_CALLS]"] }),
    },
    format("nemotron", &["nano_v3", "nemotron_3"], false, CALL_LINE),
    ReasoningFormat {
        name: "gpt-oss",
        aliases: &["gpt_oss", "harmony"],
        tokens: super::harmony::TOKENS,
        always: false,
        syntax: Syntax::Harmony,
    },
];

/// A format by its name, or by another name it has.
pub fn reasoning_format(name: &str) -> Option<&'static ReasoningFormat> {
    FORMATS.iter().find(|format| format.name == name || format.aliases.contains(&name))
}

/// What a format is called in settings, without its other names.
pub fn reasoning_format_names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// Takes a model's thinking out of its text. A fresh one for each choice.
#[derive(Debug)]
pub struct ReasoningParser(Machine);

#[derive(Debug)]
enum Machine {
    None,
    Tags(TagMachine),
    Harmony(Box<Harmony>),
}

impl ReasoningParser {
    /// `starts_inside`: the rendered prompt leaves thinking open.
    pub fn new(format: &'static ReasoningFormat, starts_inside: bool) -> Self {
        Self::begun(format, starts_inside.then_some(true))
    }

    /// As [`Self::new`]; None: the prompt tells nothing, so it is as the format has it.
    pub fn begun(format: &'static ReasoningFormat, starts_inside: Option<bool>) -> Self {
        Self(match &format.syntax {
            Syntax::None => Machine::None,
            Syntax::Tags(tags) => {
                Machine::Tags(TagMachine::new(tags, starts_inside.unwrap_or(format.always)))
            }
            Syntax::Harmony => {
                let mut harmony = Harmony::new(None);
                if starts_inside == Some(true) {
                    harmony.start_inside();
                }
                Machine::Harmony(Box::new(harmony))
            }
        })
    }

    /// What was pushed last is thinking, as far as that is known.
    pub fn is_inside(&self) -> bool {
        match &self.0 {
            Machine::None => false,
            Machine::Tags(tags) => matches!(tags.place, Place::Opened | Place::Inside),
            Machine::Harmony(harmony) => harmony.is_reasoning(),
        }
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        match &self.0 {
            Machine::None => 0,
            Machine::Tags(tags) => tags.pad.len() + tags.buf.len(),
            Machine::Harmony(harmony) => harmony.held(),
        }
    }

    /// Thinking goes to the sink's `reasoning`, the rest to its `content`.
    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        match &mut self.0 {
            Machine::None if text.is_empty() => {}
            Machine::None => sink.content(text),
            Machine::Tags(tags) => tags.push(text, false, sink),
            Machine::Harmony(harmony) => harmony.push(text, sink),
        }
    }

    /// The text has ended: what waits comes out.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        match &mut self.0 {
            Machine::None => {}
            Machine::Tags(tags) => tags.push("", true, sink),
            Machine::Harmony(harmony) => harmony.finish(sink),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but blanks so far: thinking may begin.
    Start,
    /// Thinking is open, and nothing but blanks so far: a model may open it again.
    Opened,
    Inside,
    /// The thinking has ended: blanks up to the answer are the format's, not the answer's.
    Behind,
    Outside,
}

#[derive(Debug)]
struct TagMachine {
    place: Place,
    /// Blanks before anything else.
    pad: String,
    buf: String,
    close: Markers,
    tags: &'static Tags,
}

impl TagMachine {
    fn new(tags: &'static Tags, inside: bool) -> Self {
        Self {
            place: if inside { Place::Opened } else { Place::Start },
            pad: String::new(),
            buf: String::new(),

            close: Markers::new(tags.cut.iter().copied().chain([tags.close])),
            tags,
        }
    }

    fn push(&mut self, text: &str, last: bool, sink: &mut dyn Sink) {
        self.buf.push_str(text);
        let buf = std::mem::take(&mut self.buf);
        let mut pos = 0;
        while let Some(used) = self.step(&buf[pos..], last, sink) {
            pos += used;
        }
        self.buf = buf;
        self.buf.drain(..pos);
    }

    /// Bytes taken; None: there is nothing to do.
    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn Sink) -> Option<usize> {
        if rest.is_empty() && (!last || self.pad.is_empty()) {
            return None;
        }
        match self.place {
            Place::Start | Place::Opened => self.start(rest, last, sink),
            Place::Inside => self.inside(rest, last, sink),
            Place::Behind => {
                let answer = rest.trim_start();
                if !answer.is_empty() {
                    self.place = Place::Outside;
                }
                Some(rest.len() - answer.len())
            }
            Place::Outside => {
                sink.content(rest);
                Some(rest.len())
            }
        }
    }

    /// Blanks, and then maybe the tag.
    fn start(&mut self, rest: &str, last: bool, sink: &mut dyn Sink) -> Option<usize> {
        let text = rest.trim_start();
        let blank = rest.len() - text.len();
        self.pad.push_str(&rest[..blank]);
        if text.starts_with(self.tags.open) {
            self.pad.clear();
            self.place = Place::Opened;
            return Some(blank + self.tags.open.len());
        }
        if self.tags.open.starts_with(text) && !last {
            return (blank > 0).then_some(blank);
        }
        let pad = std::mem::take(&mut self.pad);
        let outside = self.place == Place::Start;
        self.place = if outside { Place::Outside } else { Place::Inside };
        match pad.as_str() {
            "" => {}
            pad if outside => sink.content(pad),
            pad => sink.reasoning(pad),
        }
        Some(blank)
    }

    fn inside(&mut self, rest: &str, last: bool, sink: &mut dyn Sink) -> Option<usize> {
        let seen = self.close.find(rest, last);
        if seen.upto > 0 {
            sink.reasoning(&rest[..seen.upto]);
        }
        let Some(marker) = seen.marker else { return (seen.upto > 0).then_some(seen.upto) };
        self.place = Place::Behind;
        Some(seen.upto + if marker == self.tags.close { marker.len() } else { 0 })
    }
}
