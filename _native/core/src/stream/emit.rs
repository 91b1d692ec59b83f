//! What goes to the client: server-sent events, or one JSON object. Knows nothing of tokens and stop words.
//!
//! The head and the tail of an event are the same for the whole stream and built once; only the delta is
//! escaped, straight into the output buffer.

use super::Options;
use super::choice::{Finish, Matched};
use super::json;
use super::usage::Usage;

/// The output buffer keeps its memory between writes, up to this much.
const KEEP: usize = 64 << 10;

/// Writes the events of one stream into a reused buffer.
pub struct Events {
    out: Vec<u8>,
    /// `data: {"id":…,"choices":[`
    head: Vec<u8>,
    include_usage: bool,
    continuous_usage: bool,
}

impl Events {
    pub fn new(options: &Options) -> Self {
        let mut head = b"data: ".to_vec();
        open_object(&mut head, options, options.object.chunk_name());
        head.extend_from_slice(b",\"choices\":[");
        Self {
            out: Vec::new(),
            head,
            include_usage: options.include_usage,
            continuous_usage: options.continuous_usage,
        }
    }

    pub fn buffer(&self) -> &[u8] {
        &self.out
    }

    pub fn clear(&mut self) {
        self.out.clear();
        self.out.shrink_to(KEEP);
    }

    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The first event of a choice.
    pub fn role(&mut self, choice: u32, usage: &Usage) {
        self.open(choice);
        self.put(b"{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}");
        self.close(usage);
    }

    /// A piece of the answer, not empty.
    pub fn content(&mut self, choice: u32, text: &str, usage: &Usage) {
        self.open(choice);
        self.put(b"{\"content\":\"");
        json::escape(&mut self.out, text);
        self.put(b"\"},\"finish_reason\":null}");
        self.close(usage);
    }

    /// The last event of a choice.
    pub fn finish(&mut self, choice: u32, finish: &Finish, usage: &Usage) {
        self.open(choice);
        self.put(b"{}");
        write_finish(&mut self.out, finish);
        self.put(b"}");
        self.close(usage);
    }

    /// After all choices: the usage, if it was asked for, and the end mark.
    pub fn done(&mut self, usage: &Usage) {
        if self.include_usage {
            self.out.extend_from_slice(&self.head);
            self.put(b"],\"usage\":");
            usage.write(&mut self.out);
            self.put(b"}\n\n");
        }
        self.put(b"data: [DONE]\n\n");
    }

    /// An error and the end mark. Line ends between the tokens of `error` would end the event early.
    pub fn error(&mut self, error: &str) {
        self.put(b"data: ");
        let flat = error.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
        self.out.extend(flat);
        self.put(b"\n\ndata: [DONE]\n\n");
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn open(&mut self, choice: u32) {
        self.out.extend_from_slice(&self.head);
        self.put(b"{\"index\":");
        json::number(&mut self.out, choice.into());
        self.put(b",\"delta\":");
    }

    fn close(&mut self, usage: &Usage) {
        if self.continuous_usage {
            self.put(b"],\"usage\":");
            usage.write(&mut self.out);
            self.put(b"}\n\n");
        } else if self.include_usage {
            self.put(b"],\"usage\":null}\n\n");
        } else {
            self.put(b"]}\n\n");
        }
    }
}

/// The whole answer of a response that is not streamed; `choices` are text and finish by index.
pub fn aggregate<'a>(
    options: &Options,
    choices: impl Iterator<Item = (&'a str, &'a Finish)>,
    usage: &Usage,
) -> Vec<u8> {
    let mut out = Vec::new();
    open_object(&mut out, options, options.object.name());
    out.extend_from_slice(b",\"choices\":[");
    for (index, (text, finish)) in choices.enumerate() {
        out.extend_from_slice(if index == 0 { b"{\"index\":" } else { b",{\"index\":" });
        json::number(&mut out, index as u64);
        out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
        json::string(&mut out, text);
        out.extend_from_slice(b",\"refusal\":null},\"logprobs\":null");
        write_finish(&mut out, finish);
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"usage\":");
    usage.write(&mut out);
    out.push(b'}');
    out
}

/// What every event and the whole answer begin with.
fn open_object(out: &mut Vec<u8>, options: &Options, object: &str) {
    out.extend_from_slice(b"{\"id\":");
    json::string(out, &options.id);
    out.extend_from_slice(b",\"object\":");
    json::string(out, object);
    out.extend_from_slice(b",\"created\":");
    json::number(out, options.created);
    out.extend_from_slice(b",\"model\":");
    json::string(out, &options.model);
    if let Some(fingerprint) = &options.system_fingerprint {
        out.extend_from_slice(b",\"system_fingerprint\":");
        json::string(out, fingerprint);
    }
}

fn write_finish(out: &mut Vec<u8>, finish: &Finish) {
    out.extend_from_slice(b",\"finish_reason\":");
    json::string(out, finish.reason);
    match &finish.matched {
        None => {}
        Some(Matched::Token(id)) => {
            out.extend_from_slice(b",\"matched_stop\":");
            json::number(out, (*id).into());
        }
        Some(Matched::Text(text)) => {
            out.extend_from_slice(b",\"matched_stop\":");
            json::string(out, text);
        }
    }
}
