//! How a call ended: from trailers, or from what went wrong with HTTP or the connection, by gRPC's tables.

use h2::Reason;
use http::{HeaderMap, StatusCode};

pub const OK: i32 = 0;
pub const CANCELLED: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const DEADLINE_EXCEEDED: i32 = 4;
pub const PERMISSION_DENIED: i32 = 7;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const UNIMPLEMENTED: i32 = 12;
pub const INTERNAL: i32 = 13;
pub const UNAVAILABLE: i32 = 14;
pub const UNAUTHENTICATED: i32 = 16;

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// 0 to 16.
    pub code: i32,
    pub details: String,
    /// The worker was silent for too long.
    pub silent: bool,
}

impl Status {
    pub fn new(code: i32, details: impl Into<String>) -> Self {
        Self { code, details: details.into(), silent: false }
    }

    /// The status that a worker tells in trailers, or in headers that are trailers too. None: it tells none.
    pub fn told(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?.to_str().ok().and_then(|text| text.parse().ok());
        let details = headers.get("grpc-message").map_or_else(String::new, |text| decode(text.as_bytes()));
        Some(Self::new(code.filter(|code| (0..=16).contains(code)).unwrap_or(UNKNOWN), details))
    }

    /// The status for the headers of an answer that is no gRPC. None: it is.
    pub fn of_headers(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        if status != StatusCode::OK {
            return Some(Self::new(
                code_of_http(status),
                format!("the worker answered with HTTP status {status}"),
            ));
        }
        let kind = headers.get(http::header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        if kind.starts_with(b"application/grpc") {
            return None;
        }
        let kind = String::from_utf8_lossy(kind);
        Some(Self::new(UNKNOWN, format!("the worker answered with content-type {kind:?}, which is no gRPC")))
    }

    /// The status of a call that ended without a word about it.
    pub fn missing(trailers: Option<&HeaderMap>) -> Self {
        match trailers {
            Some(_) => Self::new(UNKNOWN, "the worker ended the call without a status"),
            None => Self::new(INTERNAL, "the worker ended the call without trailers"),
        }
    }

    /// The status for an error of HTTP/2. `lost`: why we dropped the connection, if we did.
    pub fn of_h2(error: &h2::Error, address: &str, lost: Option<&str>) -> Self {
        if let Some(why) = lost {
            return Self::new(UNAVAILABLE, format!("the connection to {address} was dropped: {why}"));
        }
        match error.reason() {
            Some(reason) if error.is_reset() => {
                let whose = if error.is_remote() { "the worker" } else { "we" };
                Self::new(code_of_reset(reason), format!("{whose} reset the call: {reason}"))
            }
            _ => Self::new(UNAVAILABLE, format!("the connection to {address} was lost: {error}")),
        }
    }
}

fn code_of_http(status: StatusCode) -> i32 {
    match status.as_u16() {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

fn code_of_reset(reason: Reason) -> i32 {
    match reason {
        Reason::REFUSED_STREAM => UNAVAILABLE,
        Reason::CANCEL => CANCELLED,
        Reason::ENHANCE_YOUR_CALM => RESOURCE_EXHAUSTED,
        Reason::INADEQUATE_SECURITY => PERMISSION_DENIED,
        Reason::STREAM_CLOSED | Reason::HTTP_1_1_REQUIRED => UNKNOWN,
        _ => INTERNAL,
    }
}

/// Undoes the percent-encoding of `grpc-message`; what is no encoding stays as it is.
fn decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.first_chunk::<2>().filter(|_| byte == b'%');
        let decoded = digits.and_then(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?));
        out.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_status_is_a_number_and_words() {
        let told = |pairs: &[_]| Status::told(&headers(pairs)).map(|status| (status.code, status.details));
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[("grpc-status", "0")]), Some((OK, String::new())));
        assert_eq!(
            told(&[("grpc-status", "3"), ("grpc-message", "bad%20input: %E6%97%A5 100%")]),
            Some((3, "bad input: 日 100%".to_owned()))
        );
        for wrong in ["17", "-1", "x", ""] {
            assert_eq!(told(&[("grpc-status", wrong)]), Some((UNKNOWN, String::new())), "{wrong}");
        }
    }

    #[test]
    fn broken_encodings_stay_as_they_are() {
        assert_eq!(decode(b"%"), "%");
        assert_eq!(decode(b"%4"), "%4");
        assert_eq!(decode(b"%zz%41%+1"), "%zzA%+1");
        assert_eq!(decode(b"%ff"), "\u{fffd}");
    }

    #[test]
    fn an_answer_that_is_no_grpc_has_a_status_by_its_http() {
        let of = |status: u16, kind: &str| {
            let headers = headers(&[("content-type", kind)]);
            Status::of_headers(StatusCode::from_u16(status).unwrap(), &headers).map(|status| status.code)
        };
        assert_eq!(of(200, "application/grpc"), None);
        assert_eq!(of(200, "application/grpc+proto"), None);
        assert_eq!(of(200, "text/html"), Some(UNKNOWN));
        let table =
            [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (500, 2), (502, 14), (503, 14), (504, 14)];
        for (http, code) in table {
            assert_eq!(of(http, "application/grpc"), Some(code), "{http}");
        }
    }

    #[test]
    fn resets_have_the_codes_of_the_table() {
        assert_eq!(code_of_reset(Reason::REFUSED_STREAM), UNAVAILABLE);
        assert_eq!(code_of_reset(Reason::CANCEL), CANCELLED);
        assert_eq!(code_of_reset(Reason::ENHANCE_YOUR_CALM), RESOURCE_EXHAUSTED);
        assert_eq!(code_of_reset(Reason::PROTOCOL_ERROR), INTERNAL);
        assert_eq!(code_of_reset(Reason::NO_ERROR), INTERNAL);
    }
}
