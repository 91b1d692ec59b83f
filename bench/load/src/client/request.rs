//! One chat completion: its bytes, its answer, the checks on it.

use super::http::Connection;
use super::sse::{Events, content};
use crate::stats::Times;
use serde_json::{Value, json};
use std::time::Instant;

/// What all requests of a run share.
pub struct Plan {
    pub address: String,
    pub path: String,
    pub model: String,
    pub api_key: Option<String>,
    pub max_tokens: u64,
    pub prompt_tokens: usize,
    pub stream: bool,
}

/// What one answer gave.
#[derive(Default)]
pub struct Answer {
    pub tokens: u64,
    pub content_events: u64,
    pub text_bytes: u64,
    pub body_bytes: u64,
    pub ttft: Times,
    pub itl: Times,
    pub e2e: Times,
}

/// Common words that are one token each in most vocabularies, with a blank before them.
const WORDS: [&str; 32] = [
    "time",
    "water",
    "house",
    "people",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "room",
    "mother",
    "area",
    "money",
    "story",
];

impl Plan {
    /// The whole request for prompt number `number`; no two numbers share more than their first word.
    pub fn request(&self, number: u64) -> Vec<u8> {
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": prompt(number, self.prompt_tokens)}],
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "stream": self.stream,
        });
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let body = body.to_string();
        let authorization = match &self.api_key {
            Some(key) => format!("Authorization: Bearer {key}\r\n"),
            None => String::new(),
        };
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
            self.path,
            self.address,
            body.len()
        )
        .into_bytes()
    }

    /// Sends request `number` and reads its answer. Errors are short, so that they can be counted by kind.
    pub async fn run(&self, connection: &mut Connection, number: u64) -> Result<Answer, String> {
        let request = self.request(number);
        let start = Instant::now();
        let head = connection.request(&request).await.map_err(|error| error.to_string())?;
        if head.status != 200 {
            let text = read_all(connection, &head).await.unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            return Err(format!("status {}: {}", head.status, text.chars().take(200).collect::<String>()));
        }
        let answer = if self.stream {
            self.read_stream(connection, &head, start).await?
        } else {
            self.read_whole(connection, &head, start).await?
        };
        if answer.tokens != self.max_tokens {
            return Err(format!("{} completion tokens, {} expected", answer.tokens, self.max_tokens));
        }
        Ok(answer)
    }

    async fn read_stream(
        &self,
        connection: &mut Connection,
        head: &super::http::Head,
        start: Instant,
    ) -> Result<Answer, String> {
        if !head.event_stream {
            return Err("the answer is no event stream".to_owned());
        }
        let mut reader =
            StreamReader { start, last: None, answer: Answer::default(), usage: None, done: 0, error: None };
        let mut events = Events::default();
        let mut bytes = Vec::new();
        let mut body = connection.body(head);
        while body.next(&mut bytes).await.map_err(|error| error.to_string())? {
            let now = Instant::now();
            reader.answer.body_bytes += bytes.len() as u64;
            events.feed(&bytes, |data| reader.event(data, now));
        }
        reader.finish(events.complete())
    }

    async fn read_whole(
        &self,
        connection: &mut Connection,
        head: &super::http::Head,
        start: Instant,
    ) -> Result<Answer, String> {
        let body = read_all(connection, head).await?;
        let value: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let message = &value["choices"][0]["message"];
        let text = |name: &str| message[name].as_str().map_or(0, str::len) as u64;
        let mut answer = Answer {
            tokens: value["usage"]["completion_tokens"].as_u64().ok_or("no usage in the answer")?,
            content_events: 1,
            text_bytes: text("content") + text("reasoning_content"),
            body_bytes: body.len() as u64,
            ..Answer::default()
        };
        answer.ttft.add(start.elapsed());
        answer.e2e.add(start.elapsed());
        if answer.text_bytes == 0 {
            return Err("an answer without text".to_owned());
        }
        Ok(answer)
    }
}

async fn read_all(connection: &mut Connection, head: &super::http::Head) -> Result<Vec<u8>, String> {
    let (mut all, mut part) = (Vec::new(), Vec::new());
    let mut body = connection.body(head);
    while body.next(&mut part).await.map_err(|error| error.to_string())? {
        all.extend_from_slice(&part);
    }
    Ok(all)
}

struct StreamReader {
    start: Instant,
    last: Option<Instant>,
    answer: Answer,
    usage: Option<u64>,
    done: u32,
    error: Option<String>,
}

impl StreamReader {
    fn event(&mut self, data: &[u8], now: Instant) {
        if data == b"[DONE]" {
            self.done += 1;
            return;
        }
        if self.done > 0 {
            self.error = Some("an event after [DONE]".to_owned());
        }
        let text = content(data);
        if !text.is_empty() {
            self.answer.content_events += 1;
            self.answer.text_bytes += text.len() as u64;
            match self.last.replace(now) {
                None => self.answer.ttft.add(now - self.start),
                Some(last) => self.answer.itl.add(now - last),
            }
        } else {
            self.other(data);
        }
    }

    /// Chunks without text are few: role, finish, usage, error. These are parsed.
    fn other(&mut self, data: &[u8]) {
        match serde_json::from_slice::<Value>(data) {
            Err(_) => self.error = Some("an event that is no JSON".to_owned()),
            Ok(value) if value.get("error").is_some_and(|error| !error.is_null()) => {
                self.error = Some(format!("error event: {}", value["error"]));
            }
            Ok(value) => self.usage = value["usage"]["completion_tokens"].as_u64().or(self.usage),
        }
    }

    fn finish(mut self, complete: bool) -> Result<Answer, String> {
        if let Some(error) = self.error {
            return Err(error);
        }
        match self.done {
            1 if complete => {}
            0 => return Err("a stream without [DONE]".to_owned()),
            _ => return Err("bytes after [DONE]".to_owned()),
        }
        self.answer.tokens = self.usage.unwrap_or(self.answer.content_events);
        self.answer.e2e.add(self.start.elapsed());
        Ok(self.answer)
    }
}

fn prompt(number: u64, tokens: usize) -> String {
    let mut seed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut text = format!("Request {number}:");
    for _ in 0..tokens {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        text.push(' ');
        text.push_str(WORDS[(seed >> 32) as usize % WORDS.len()]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> StreamReader {
        StreamReader {
            start: Instant::now(),
            last: None,
            answer: Answer::default(),
            usage: None,
            done: 0,
            error: None,
        }
    }

    fn read(events: &[&str]) -> Result<Answer, String> {
        let mut reader = reader();
        events.iter().for_each(|event| reader.event(event.as_bytes(), Instant::now()));
        reader.finish(true)
    }

    const TEXT: &str = r#"{"choices":[{"delta":{"content":"ab"}}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"completion_tokens":7}}"#;

    #[test]
    fn a_good_stream() {
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}"#;
        let answer = read(&[role, TEXT, TEXT, USAGE, "[DONE]"]).unwrap();
        assert_eq!((answer.tokens, answer.content_events, answer.text_bytes), (7, 2, 4));
        assert_eq!(read(&[TEXT, TEXT, "[DONE]"]).unwrap().tokens, 2);
    }

    #[test]
    fn bad_streams_are_errors() {
        assert!(read(&[TEXT, USAGE]).is_err());
        assert!(read(&[TEXT, "[DONE]", TEXT]).is_err());
        assert!(read(&[TEXT, "[DONE]", "[DONE]"]).is_err());
        assert!(read(&[TEXT, r#"{"error":{"message":"x"}}"#, "[DONE]"]).is_err());
        assert!(read(&["nonsense", "[DONE]"]).is_err());
        let mut open = reader();
        open.event(b"[DONE]", Instant::now());
        assert!(open.finish(false).is_err());
    }

    #[test]
    fn prompts_differ_and_have_their_length() {
        assert_ne!(prompt(1, 50), prompt(2, 50));
        assert_eq!(prompt(1, 50).split(' ').count(), 52);
    }
}
