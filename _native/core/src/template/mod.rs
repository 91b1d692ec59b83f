//! Chat templates, rendered as Hugging Face's transformers renders them.
//!
//! minijinja does the work, with Python's printing, methods and JSON put over its own. Layout:
//! - [`source`], [`expression`], [`tokens`]: what is changed in a template's text before it is compiled;
//! - [`value`], [`repr`], [`json`]: request JSON as Python-like values, and how they are written out;
//! - [`operators`]: what stands in the place of operators;
//! - [`methods`], [`strings`], [`builtins`], [`layout`], [`lazy`], [`clock`]: what templates can call;
//! - [`messages`], [`probe`]: what form of messages a template reads, and messages in that form.
//!
//! A template is compiled once and shared without locks. Rendering is bounded by [`Limits`].

mod builtins;
mod clock;
mod expression;
mod json;
mod layout;
mod lazy;
mod messages;
mod methods;
mod operators;
mod probe;
mod repr;
mod source;
mod strings;
mod tokens;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::error::{Code, Error, Result};
use messages::Continued;
pub use messages::{Content, Forms, Missing};
use value::{Variables, from_json};

/// The name a template has in its environment.
const NAME: &str = "chat_template";
/// Bytes of a template's text; straight code nests values as deep as it is long. The longest of models has 20 kB.
const MAX_SOURCE: usize = 256 << 10;
/// Stands where a prompt to be continued is cut off; the blank at its end tells whether the template
/// trimmed the text before it.
const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Bytes: what a short prompt does not outgrow.
const USUAL_PROMPT: usize = 512;
/// What kwargs cannot set: the arguments of `apply_chat_template`, the template itself, which would be code of
/// the client's, and the clock.
pub const RESERVED: [&str; 9] = [
    "messages",
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    builtins::NOW,
];

/// What one rendering may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One unit is about an instruction, 64 bytes of text made, or two items visited.
    pub fuel: u64,
    /// Bytes of the prompt.
    pub max_output: usize,
}

impl Default for Limits {
    /// Some tenths of a second at worst; a conversation of 100 kB takes about a hundredth of the fuel.
    fn default() -> Self {
        Self { fuel: 2_000_000, max_output: 64 << 20 }
    }
}

/// The form in which a template reads a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentForm {
    String,
    /// A list of `{"type": "text", "text": …}`.
    Parts,
}

/// One conversation to render.
#[derive(Clone, Copy, Debug)]
pub struct RenderInput<'a> {
    /// A list of objects as the client sent them.
    pub messages: &'a Json,
    pub tools: Option<&'a Json>,
    pub documents: Option<&'a Json>,
    /// More variables for the template (`enable_thinking` …); they win over special tokens.
    pub kwargs: &'a Map<String, Json>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    /// Unix seconds for `strftime_now`; None is the clock.
    pub now: Option<i64>,
}

/// A compiled chat template. Immutable, `Send` and `Sync`.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    special_tokens: Vec<(Value, Value)>,
    forms: Forms,
    /// The template names `content`, so that it can be continued.
    reads_content: bool,
}

impl ChatTemplate {
    /// Compiles `source`; `special_tokens` (`bos_token` …) become its variables.
    ///
    /// Errors: `Load` on a syntax error, with its line.
    pub fn new(source: &str, special_tokens: &BTreeMap<String, String>) -> Result<Self> {
        let mut env = Environment::new();
        env.set_debug(false);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        builtins::install(&mut env);
        if source.len() > MAX_SOURCE {
            let text = format!("chat template: longer than {MAX_SOURCE} bytes");
            return Err(Error::new(Code::Load, text));
        }
        let adapted = source::adapt(source);
        if let Some((line, fault)) = adapted.fault {
            return Err(Error::new(Code::Load, format!("chat template, line {line}: {fault}")));
        }
        for (line, names) in &adapted.names {
            if let Some(fault) = builtins::unknown(names) {
                return Err(Error::new(Code::Load, format!("chat template, line {line}: {fault}")));
            }
        }
        env.add_template_owned(NAME, adapted.text).map_err(|error| load_error(&error))?;
        let mut template = Self {
            env,
            special_tokens: special_tokens
                .iter()
                .filter(|(name, _)| !RESERVED.contains(&name.as_str()))
                .map(|(name, token)| (Value::from(name.as_str()), Value::from(token.as_str())))
                .collect(),
            forms: Forms::AS_GIVEN,
            reads_content: source.contains("content"),
        };
        template.forms = probe::forms(&template, source);
        Ok(template)
    }

    /// The form the template expects in a user message's `content`.
    pub fn content_form(&self) -> ContentForm {
        self.forms.user.form()
    }

    /// All that was found out about the messages this template reads.
    pub fn forms(&self) -> &Forms {
        &self.forms
    }

    /// The prompt of `input`.
    ///
    /// Errors: `Template` when the template refuses the conversation or fails on it, `Fuel` when a limit is
    /// reached, `InvalidRequest` when the input contradicts itself.
    pub fn render(&self, input: &RenderInput, limits: &Limits) -> Result<String> {
        self.render_as(input, &self.forms, limits)
    }

    /// The same with messages in other forms than the template's own.
    fn render_as(&self, input: &RenderInput, forms: &Forms, limits: &Limits) -> Result<String> {
        if input.continue_final_message && input.add_generation_prompt {
            let text = "continue_final_message and add_generation_prompt exclude each other";
            return Err(Error::new(Code::InvalidRequest, text).at("continue_final_message"));
        }
        if input.continue_final_message && !self.reads_content {
            let text = "continue_final_message: the chat template has no content to continue";
            return Err(Error::new(Code::InvalidRequest, text).at("continue_final_message"));
        }
        let mark = input.continue_final_message.then_some(CONTINUE_MARK);
        let (messages, continued) = messages::convert(input.messages, forms, mark)?;
        let rendered = self.run(self.context(input, messages), limits)?;
        match continued {
            Some(continued) => cut_at_mark(rendered, &continued),
            None => Ok(rendered),
        }
    }

    /// The template's variables.
    fn context(&self, input: &RenderInput, messages: Value) -> Value {
        let optional = |given: Option<&Json>| given.map_or_else(|| Value::from(()), from_json);
        let special = self.special_tokens.iter();
        let mut context = Vec::with_capacity(self.special_tokens.len() + input.kwargs.len() + 5);
        context.extend(
            special
                .filter(|(name, _)| !name.as_str().is_some_and(|name| input.kwargs.contains_key(name)))
                .cloned(),
        );
        let kwargs = input.kwargs.iter().filter(|(name, _)| !RESERVED.contains(&name.as_str()));
        context.extend(kwargs.map(|(name, given)| (Value::from(name.as_str()), from_json(given))));
        context.push((Value::from("messages"), messages));
        context.push((Value::from("tools"), optional(input.tools)));
        context.push((Value::from("documents"), optional(input.documents)));
        context.push((Value::from("add_generation_prompt"), Value::from(input.add_generation_prompt)));
        if let Some(now) = input.now {
            context.push((Value::from(builtins::NOW), Value::from(now)));
        }
        Variables::value(context)
    }

    fn run(&self, context: Value, limits: &Limits) -> Result<String> {
        // Fuel belongs to an environment; the copy shares everything behind reference counts.
        let mut env = self.env.clone();
        env.set_fuel(Some(limits.fuel));
        let template = env.get_template(NAME).map_err(|error| load_error(&error))?;
        let mut out =
            Bounded { text: Vec::with_capacity(USUAL_PROMPT), limit: limits.max_output, full: false };
        let result = template.render_captured_to(context, &mut out).map(drop);
        if out.full {
            let text = format!("the rendered prompt is longer than {} bytes", limits.max_output);
            return Err(Error::new(Code::Fuel, text).at("messages"));
        }
        result.map_err(|error| render_error(&error))?;
        String::from_utf8(out.text).map_err(|error| Error::new(Code::Internal, error.to_string()))
    }
}

/// A buffer that refuses to grow past its limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The rendered text up to the mark, as transformers cuts it.
fn cut_at_mark(mut rendered: String, continued: &Continued) -> Result<String> {
    let mark = CONTINUE_MARK.trim_end();
    let at = rendered.rfind(mark).filter(|_| rendered.contains(strings::strip(&continued.text)));
    let Some(at) = at else {
        let text = "continue_final_message: the final message does not appear in the rendered prompt";
        return Err(Error::new(Code::Template, text).at("messages"));
    };
    let untrimmed = rendered[at..].starts_with(CONTINUE_MARK);
    rendered.truncate(at);
    if !untrimmed {
        rendered.truncate(rendered.trim_end_matches(strings::is_space).len());
    }
    Ok(rendered)
}

fn load_error(error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Error::new(Code::Load, format!("chat template{line}: {detail}"))
}

/// The error for a failed rendering: what the template raised itself, or where it failed.
fn render_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut deepest = error;
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<builtins::Raised>() {
            return Error::new(Code::Template, raised.0.clone()).at("messages");
        }
        if let Some(inner) = current.downcast_ref::<minijinja::Error>() {
            deepest = inner;
            if inner.kind() == ErrorKind::OutOfFuel {
                let text = "rendering the chat template takes too long for this conversation";
                return Error::new(Code::Fuel, text).at("messages");
            }
        }
        cause = current.source();
    }
    let line = deepest.line().map_or(String::new(), |line| format!(" in line {line}"));
    let detail = deepest.detail().map_or_else(|| deepest.kind().to_string(), str::to_owned);
    Error::new(Code::Template, format!("the chat template failed{line}: {detail}")).at("messages")
}
