//! The transport against a scripted worker of the same h2, and against socket pairs.

mod answers;
mod calls;
mod connections;
mod faults;
mod held;
mod late;
mod lending;
mod server;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::answer::Answer;
use super::events::{Event, What};
use super::frames::framed;
use super::status::Status;
use super::{Call, Net, Options};
use crate::stream::{self, Stream};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::fixtures::{byte_level_file, load};
use crate::wire::{GenerateComplete, GenerateResponse, GenerateStreamChunk, Response};
use server::Step;

/// Wide room for what must happen at all.
const LONG: Duration = Duration::from_secs(20);
/// Long enough for what must not happen.
const SHORT: Duration = Duration::from_millis(80);
/// A patience that a worker keeps to on a busy machine, too.
const PATIENT: Duration = Duration::from_millis(1500);

/// Many of these are more than the windows hold.
const LINE: &str =
    "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789\n";

/// Waits until something holds.
fn soon(mut holds: impl FnMut() -> bool) {
    let born = Instant::now();
    while !holds() {
        assert!(born.elapsed() < LONG, "it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A transport and what it has told so far.
struct Client {
    net: Net,
    told: Vec<Event>,
}

impl Client {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self { net: Net::new(options).unwrap(), told: Vec::new() }
    }

    fn generate(&self, address: &str, answer: Option<&Arc<Answer>>, tag: u64) -> Call {
        self.patient(address, answer, tag, LONG, LONG)
    }

    fn patient(
        &self,
        address: &str,
        answer: Option<&Arc<Answer>>,
        tag: u64,
        first: Duration,
        between: Duration,
    ) -> Call {
        let answer = answer.map(|answer| (Arc::clone(answer), 0));
        let call = self.net.generate(address, b"request", answer, tag, first, between).unwrap();
        self.net.submit();
        call
    }

    /// Fetches events until something holds of all that were told.
    fn wait(&mut self, holds: impl Fn(&[Event]) -> bool) -> &[Event] {
        let born = Instant::now();
        while !holds(&self.told) {
            assert!(born.elapsed() < LONG, "it never came: {:?}", self.told);
            let mut polled = [PollFd::from_borrowed_fd(self.net.fd(), PollFlags::IN)];
            let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            if poll(&mut polled, Some(&pause)).unwrap() == 1 {
                self.net.fetch(&mut self.told);
            }
        }
        &self.told
    }

    /// The end of a call.
    fn end(&mut self, tag: u64) -> Status {
        self.wait(|told| ended(told, tag).is_some());
        ended(&self.told, tag).unwrap()
    }

    /// Messages that were not fed.
    fn messages(&self, tag: u64) -> Vec<Bytes> {
        let mine = self.told.iter().filter(|event| event.tag == tag);
        mine.filter_map(|event| match &event.what {
            What::Message(message) => Some(message.clone()),
            _ => None,
        })
        .collect()
    }

    /// Sum of messages and flags of what was fed.
    fn fed(&self, tag: u64) -> (u32, u32) {
        let mine = self.told.iter().filter(|event| event.tag == tag);
        mine.fold((0, 0), |(count, all), event| match event.what {
            What::Fed { messages, flags, .. } => (count + messages, all | flags),
            _ => (count, all),
        })
    }

    /// Nothing comes for a while.
    fn quiet(&mut self) {
        std::thread::sleep(SHORT);
        let before = self.told.len();
        self.net.fetch(&mut self.told);
        assert_eq!(self.told.len(), before, "{:?}", self.told);
    }
}

fn ended(told: &[Event], tag: u64) -> Option<Status> {
    told.iter().find_map(|event| match &event.what {
        What::Ended(status) if event.tag == tag => Some(status.clone()),
        _ => None,
    })
}

/// More and more of this, far apart.
fn trickle(text: &str) -> impl Iterator<Item = Step> {
    (0..200).flat_map(move |_| [Step::Pause(SHORT), data(&chunk(text))])
}

fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    Arc::clone(TOKENIZER.get_or_init(|| Arc::new(load(&byte_level_file()))))
}

fn answer(options: serde_json::Value) -> Arc<Answer> {
    let mut all = serde_json::json!({"id": "x", "created": 1, "model": "m", "object": "text_completion"});
    all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let options = stream::Options::from_json(all.to_string().as_bytes()).unwrap();
    Arc::new(Answer::new(Stream::new(tokenizer(), options).unwrap()))
}

fn streamed() -> Arc<Answer> {
    answer(serde_json::json!({"streaming": true}))
}

fn message(response: Response) -> Bytes {
    GenerateResponse { response: Some(response) }.encode_to_vec().into()
}

/// A chunk with this text; the tokenizer's first ids are the bytes.
fn chunk(text: &str) -> Bytes {
    let token_ids = text.bytes().map(u32::from).collect();
    message(Response::Chunk(GenerateStreamChunk { token_ids, ..Default::default() }))
}

fn complete(reason: &str) -> Bytes {
    let complete = GenerateComplete { finish_reason: reason.to_owned(), ..Default::default() };
    message(Response::Complete(complete))
}

fn data(message: &[u8]) -> Step {
    Step::Data(framed(message))
}

fn fine() -> Step {
    Step::Trailers(vec![("grpc-status", "0")])
}

/// An answer of these texts.
fn said(texts: &[&str]) -> Vec<Step> {
    let chunks = texts.iter().map(|text| data(&chunk(text)));
    chunks.chain([data(&complete("stop")), fine()]).collect()
}

fn taken(answer: &Answer) -> Vec<u8> {
    let mut taken = Vec::new();
    answer.take(&mut answer.lock(), &mut taken);
    taken
}

/// What the events of a stream say in all, and whether it is whole.
fn text(events: &[u8]) -> (String, bool) {
    let events = std::str::from_utf8(events).unwrap();
    let mut text = String::new();
    for event in events.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        if let Ok(event) = serde_json::from_str::<serde_json::Value>(event) {
            text += event["choices"][0]["text"].as_str().unwrap_or_default();
        }
    }
    (text, events.ends_with("data: [DONE]\n\n"))
}
