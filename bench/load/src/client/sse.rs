//! Server-sent events: bytes in any cut, the data of each event out.

/// Splits a stream into the `data` of its events. Comments and other fields are passed over.
#[derive(Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl Events {
    /// Calls `event` with the data of each event that `bytes` completes.
    pub fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if self.line.is_empty() {
                take_line(&mut self.data, &rest[..end], &mut event);
            } else {
                self.line.extend_from_slice(&rest[..end]);
                take_line(&mut self.data, &self.line, &mut event);
                self.line.clear();
            }
            rest = &rest[end + 1..];
        }
        self.line.extend_from_slice(rest);
    }

    /// Whether all that came belongs to completed events.
    pub fn complete(&self) -> bool {
        self.line.is_empty() && self.data.is_empty()
    }
}

fn take_line(data: &mut Vec<u8>, line: &[u8], event: &mut impl FnMut(&[u8])) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        if !data.is_empty() {
            event(data);
            data.clear();
        }
    } else if let Some(value) = line.strip_prefix(b"data:") {
        if !data.is_empty() {
            data.push(b'\n');
        }
        data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
    }
}

/// The text of a chat completion chunk still escaped, "" where it has none: `content` or `reasoning_content`
/// that is a string. Looked for by bytes, as parsing each chunk would cost more than the router's own work.
pub fn content(data: &[u8]) -> &[u8] {
    const KEY: &[u8] = b"content\":";
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&data[from..], KEY) {
        let value = data[from + at + KEY.len()..].trim_ascii_start();
        if let Some(text) = value.strip_prefix(b"\"") {
            let text = &text[..string_length(text)];
            if !text.is_empty() {
                return text;
            }
        }
        from += at + KEY.len();
    }
    b""
}

/// Bytes before the quote that ends a JSON string.
fn string_length(text: &[u8]) -> usize {
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same_events() {
        let stream =
            b": ping\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let mut seen: Vec<Vec<u8>> = Vec::new();
            for piece in stream.chunks(size) {
                events.feed(piece, |data| seen.push(data.to_vec()));
            }
            assert_eq!(seen, [&b"{\"a\":1}"[..], b"two\nlines", b"[DONE]"]);
            assert!(events.complete());
        }
    }

    #[test]
    fn an_open_event_is_not_complete() {
        let mut events = Events::default();
        events.feed(b"data: x\n", |_| panic!("not complete"));
        assert!(!events.complete());
    }

    #[test]
    fn content_is_found_escaped() {
        assert_eq!(content(br#"{"delta":{"role":"assistant","content":""}}"#), b"");
        assert_eq!(content(br#"{"delta":{"content": " a\"b\\"}}"#), br#" a\"b\\"#);
        assert_eq!(content(br#"{"delta":{"content":null,"reasoning_content":"r"}}"#), b"r");
        assert_eq!(content(br#"{"choices":[],"usage":{}}"#), b"");
    }
}
