//! The head of an HTTP/1.1 request, where it is of the plain kind that nearly all are.
//!
//! What is plain has one meaning only, to every server. Anything else (other framing than Content-Length, a header
//! that comes twice, a name that CGI would mix up with another, odd characters, a head that has not come
//! whole) is no error here: it is left to the server's own parser, which accepts or refuses it.

use std::ops::Range;

use httparse::{EMPTY_HEADER, Header, Request, Status};

/// Headers of a plain head at most.
pub const MOST_HEADERS: usize = 64;

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];

/// What changes how a request, or its connection, is to be read.
const SPECIAL: [&str; 5] = ["Transfer-Encoding", "Expect", "Upgrade", "HTTP2-Settings", "Trailer"];

/// More digits than a body's length has.
const LENGTH_DIGITS: usize = 15;

/// Bounds of the server's own; what is longer is not plain.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of the request line.
    pub line: usize,
    pub headers: usize,
    /// Bytes of a header's line.
    pub header: usize,
}

/// A plain head; ranges are of the data that it was read from.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'a> {
    pub method: &'static str,
    /// Path and query as they were sent.
    pub target: Range<usize>,
    pub path: Range<usize>,
    /// Without its question mark; empty if there is none.
    pub query: Range<usize>,
    /// Where the body begins.
    pub end: usize,
    /// 0 if no header says.
    pub content_length: u64,
    /// Whether the connection is to be closed after the answer.
    pub close: bool,
    /// Names as they were sent, and values.
    pub headers: &'a [(Range<usize>, Range<usize>)],
}

/// Reads the head that `data` begins with, if it is whole and plain. `found` has room for its headers.
pub fn plain_head<'a>(
    data: &[u8],
    bounds: Bounds,
    found: &'a mut [(Range<usize>, Range<usize>); MOST_HEADERS],
) -> Option<Head<'a>> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut request = Request::new(&mut headers);
    let Ok(Status::Complete(end)) = request.parse(data) else { return None };
    let (method, target) = (request.method?, request.path?);
    let method = METHODS.into_iter().find(|known| *known == method)?;
    let line = method.len() + target.len() + " ".len() + " HTTP/1.1".len();
    // An empty line before it, or a bare LF, is for the server to judge.
    let starts_here = data.starts_with(method.as_bytes());
    if request.version != Some(1) || !starts_here || line > bounds.line || has_bare_lf(&data[..end]) {
        return None;
    }
    let start = method.len() + 1;
    let (path, query) = split(target)?;
    let told = read_headers(data, end, request.headers, bounds)?;
    for (slot, header) in found.iter_mut().zip(request.headers.iter()) {
        *slot = (place(data, header.name.as_bytes()), place(data, header.value));
    }
    Some(Head {
        method,
        target: start..start + target.len(),
        path: start..start + path.len(),
        query: start + target.len() - query.len()..start + target.len(),
        end,
        content_length: told.content_length,
        close: told.close,
        headers: &found[..request.headers.len()],
    })
}

fn has_bare_lf(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// A target's path and query, where both stand for themselves.
fn split(target: &str) -> Option<(&str, &str)> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let rooted = path.starts_with('/') && !path.starts_with("//");
    let visible = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    (rooted && path.bytes().all(plain) && query.bytes().all(visible)).then_some((path, query))
}

#[derive(Default)]
struct Told {
    content_length: u64,
    close: bool,
}

/// What the headers say of the message, whose head ends at `end`; None if they are not plain.
fn read_headers(data: &[u8], end: usize, headers: &[Header<'_>], bounds: Bounds) -> Option<Told> {
    if headers.len() >= bounds.headers {
        return None;
    }
    let mut told = Told::default();
    for (index, Header { name, value }) in headers.iter().enumerate() {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let again = headers[..index].iter().any(|earlier| is(earlier.name));
        let next =
            headers.get(index + 1).map_or(end - "\r\n".len(), |next| place(data, next.name.as_bytes()).start);
        let long = next - place(data, name.as_bytes()).start > bounds.header;
        if again || long || name.contains('_') || SPECIAL.into_iter().any(is) || !value.iter().all(is_text) {
            return None;
        }
        if is("Content-Length") {
            told.content_length = number(value)?;
        } else if is("Connection") {
            told.close = value.eq_ignore_ascii_case(b"close");
            if !told.close && !value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        }
    }
    Some(told)
}

fn is_text(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~')
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.len() > LENGTH_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Where `part` lies in `data`, of which it is a part.
fn place(data: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - data.as_ptr() as usize;
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { line: 4094, headers: 100, header: 8190 };

    type Read = (&'static str, String, String, u64, bool, Vec<(String, String)>, usize);

    fn read_within(data: &[u8], bounds: Bounds) -> Option<Read> {
        let mut found = std::array::from_fn(|_| (0..0, 0..0));
        let head = plain_head(data, bounds, &mut found)?;
        let text = |range: &Range<usize>| String::from_utf8(data[range.clone()].to_vec()).unwrap();
        let headers = head.headers.iter().map(|(name, value)| (text(name), text(value))).collect();
        Some((
            head.method,
            text(&head.path),
            text(&head.query),
            head.content_length,
            head.close,
            headers,
            head.end,
        ))
    }

    fn read(data: &str) -> Option<Read> {
        read_within(data.as_bytes(), BOUNDS)
    }

    #[test]
    fn a_plain_head() {
        let text =
            "POST /v1/x?a=b&c HTTP/1.1\r\nHost: h:1\r\nContent-Length:  12 \r\nConnection: Close\r\n\r\n{}";
        let (method, path, query, length, close, headers, end) = read(text).unwrap();
        assert_eq!(
            (method, path.as_str(), query.as_str(), length, close),
            ("POST", "/v1/x", "a=b&c", 12, true)
        );
        assert_eq!(headers[1], ("Content-Length".to_owned(), "12".to_owned()));
        assert_eq!(end, text.len() - 2);
    }

    #[test]
    fn without_headers_or_query() {
        let (_, path, query, length, close, headers, _) = read("GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((path.as_str(), query.as_str(), length, close, headers.len()), ("/", "", 0, false, 0));
    }

    #[test]
    fn what_is_not_plain() {
        let with = |header: &str| format!("POST /x HTTP/1.1\r\nHost: h\r\n{header}\r\n\r\n");
        assert!(read(&with("A: b")).is_some());
        for header in [
            "Transfer-Encoding: chunked",
            "transfer-encoding: identity",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "HTTP2-Settings: x",
            "Connection: keep-alive, Upgrade",
            "Connection: Upgrade",
            "Content-Length: -1",
            "Content-Length: +1",
            "Content-Length: 1, 1",
            "Content-Length: ",
            "Content-Length: 0x1",
            "Content-Length: 1111111111111111",
            "host: other",
            "A: b\r\na: c",
            "X_Y: z",
            "A: b\r\n folded",
            "A : b",
            " A: b",
            "A: b\nB: c",
            "A: \u{e9}",
            "A: b\x00c",
            "A: b\x7fc",
            ": b",
            "A b",
        ] {
            assert_eq!(read(&with(header)), None, "{header:?}");
        }
        for line in [
            "post /x HTTP/1.1",
            "PATCH /x HTTP/1.1",
            "CONNECT h:1 HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "GET //x HTTP/1.1",
            "GET http://h/x HTTP/1.1",
            "GET /%78 HTTP/1.1",
            "GET /x#y HTTP/1.1",
            "GET /x?y#z HTTP/1.1",
            "GET /x HTTP/1.0",
            "GET /x HTTP/2.0",
            "GET /x",
            "GET  /x HTTP/1.1",
            "GET /x  HTTP/1.1",
            "GET /x HTTP/1.1 ",
            "GET /\u{e9} HTTP/1.1",
            "GET /x;y HTTP/1.1",
            "\r\nGET /x HTTP/1.1",
        ] {
            assert_eq!(read(&format!("{line}\r\nHost: h\r\n\r\n")), None, "{line:?}");
        }
    }

    #[test]
    fn lines_that_end_otherwise() {
        assert_eq!(read("GET /x HTTP/1.1\nHost: h\r\n\r\n"), None);
        assert_eq!(read("GET /x HTTP/1.1\r\nHost: h\n\r\n"), None);
        assert_eq!(read("GET /x HTTP/1.1\r\nHost: h\r\n\n"), None);
        assert_eq!(read("GET /x HTTP/1.1\r\nHost: h\r\r\n\r\n"), None);
    }

    #[test]
    fn every_part_of_a_head_is_not_yet_one() {
        let text = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(read_within(&text[..end], BOUNDS), None);
        }
        assert!(read_within(text, BOUNDS).is_some());
    }

    #[test]
    fn what_is_too_long_is_left_to_the_server() {
        let text = b"GET /12345 HTTP/1.1\r\nA:  b \r\nC: d\r\n\r\n";
        let line = b"GET /12345 HTTP/1.1".len();
        for (bounds, plain) in [
            (Bounds { line, ..BOUNDS }, true),
            (Bounds { line: line - 1, ..BOUNDS }, false),
            (Bounds { headers: 3, ..BOUNDS }, true),
            (Bounds { headers: 2, ..BOUNDS }, false),
            (Bounds { header: b"A:  b \r\n".len(), ..BOUNDS }, true),
            (Bounds { header: b"A:  b \r\n".len() - 1, ..BOUNDS }, false),
        ] {
            assert_eq!(read_within(text, bounds).is_some(), plain, "{bounds:?}");
        }
        let many: String = (0..=MOST_HEADERS).map(|number| format!("H{number}: x\r\n")).collect();
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{many}\r\n")), None);
    }
}
