//! Answers, from a worker's messages to the client's bytes: that part of the C ABI, under the conventions of [`super`].

use std::sync::Arc;

use super::tokenizers::{WrTokenizer, tokenizer};
use super::*;
use crate::net::answer::{Answer, Inner, spent};
use crate::stream::{self, Stream};

pub(super) static LIVE: AtomicU64 = AtomicU64::new(0);

/// The answer to one request, all its choices.
pub struct WrStream {
    pub(super) shared: Arc<Answer>,
    /// What the last `wr_stream_take` or `wr_stream_rest` has lent out.
    taken: Vec<u8>,
}

/// As [`guard`], for a stream, whose lock is held meanwhile: a panic leaves it in an unknown state, so it is
/// spent from then on.
pub(super) fn guard_stream(
    stream: *mut WrStream,
    err: *mut WrError,
    body: impl FnOnce(&Answer, &mut Inner, &mut Vec<u8>) -> Result<()>,
) -> i32 {
    // SAFETY: the caller passes a live handle and uses it from one thread at a time.
    let Some(WrStream { shared, taken }) = (unsafe { stream.as_mut() }) else {
        return guard(err, || Err(null("stream")));
    };
    let mut inner = shared.lock();
    if inner.spent {
        return guard(err, || Err(spent()));
    }
    inner.spent = true;
    let mut returned = false;
    let code = guard(err, || {
        let outcome = body(shared, &mut inner, taken);
        returned = true;
        outcome
    });
    inner.spent = !returned;
    code
}

/// Begins an answer. `options` is the JSON object that `stream::Options` describes.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_new(
    handle: *const WrTokenizer,
    options: *const u8,
    options_len: usize,
    out: *mut *mut WrStream,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let options = stream::Options::from_json(unsafe { input(options, options_len) })?;
        let stream = Stream::new(Arc::clone(&handle.tokenizer), options)?;
        let stream = WrStream { shared: Arc::new(Answer::new(stream)), taken: Vec::new() };
        unsafe { give_handle(out, stream, &LIVE) }
    })
}

/// Takes one `GenerateResponse` of a choice; `flags` tells what it led to (`stream::flags`).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_feed(
    handle: *mut WrStream,
    choice: u32,
    message: *const u8,
    message_len: usize,
    flags: *mut u32,
    err: *mut WrError,
) -> i32 {
    guard_stream(handle, err, |_, inner, _| {
        let told = inner.stream.feed(choice, unsafe { input(message, message_len) })?;
        inner.flush();
        unsafe { give(flags, told) }
    })
}

/// The RPC of a choice ended well.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_end(
    handle: *mut WrStream,
    choice: u32,
    flags: *mut u32,
    err: *mut WrError,
) -> i32 {
    guard_stream(handle, err, |_, inner, _| {
        let told = inner.stream.end(choice)?;
        inner.flush();
        unsafe { give(flags, told) }
    })
}

/// Ends the answer with an error event; `error` is the whole JSON object.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_fail(
    handle: *mut WrStream,
    error: *const u8,
    error_len: usize,
    err: *mut WrError,
) -> i32 {
    guard_stream(handle, err, |_, inner, _| {
        inner.stream.fail(unsafe { text(error, error_len) }?);
        inner.flush();
        Ok(())
    })
}

/// The bytes that are ready for the client (borrowed until the next call on this stream).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_take(handle: *mut WrStream, out: *mut WrBytes, err: *mut WrError) -> i32 {
    guard_stream(handle, err, |shared, inner, taken| {
        shared.take(inner, taken);
        unsafe { give(out, WrBytes::borrowed(taken)) }
    })
}

/// What `wr_stream_report` can tell.
#[repr(C)]
pub enum WrReport {
    /// The whole answer as one JSON object (not streaming).
    Result = 0,
    /// The worker's words when it gave up; empty when it did not.
    Failure = 1,
    /// Token counts and inter-token times as a JSON object.
    Stats = 2,
}

fn stats_json(stats: &stream::Stats) -> String {
    serde_json::json!({
        "prompt_tokens": stats.usage.prompt,
        "completion_tokens": stats.usage.completion,
        "cached_tokens": stats.usage.cached,
        "reasoning_tokens": stats.usage.reasoning,
        "itl_buckets": stats.itl.buckets,
        "itl_sum": stats.itl.sum,
        "itl_count": stats.itl.count,
        "finish_reasons": stats.finish_reasons,
    })
    .to_string()
}

/// Tells the result, the failure or the figures of a stream (owned bytes). `kind` is a `WrReport`.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_report(
    handle: *mut WrStream,
    kind: u32,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard_stream(handle, err, |_, inner, _| {
        let stream = &inner.stream;
        let told = if kind == WrReport::Result as u32 {
            stream.result()
        } else if kind == WrReport::Failure as u32 {
            stream.failure().unwrap_or_default().as_bytes().to_vec()
        } else if kind == WrReport::Stats as u32 {
            stats_json(stream.stats()).into_bytes()
        } else {
            return Err(Error::new(Code::Internal, "there is no such report"));
        };
        unsafe { give(out, WrBytes::owned(told)) }
    })
}

/// # Safety
/// `handle` came from `wr_stream_new` and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_free(handle: *mut WrStream) {
    let end = |stream: Box<WrStream>| {
        // A call that still runs may hold the answer, but must not touch the socket.
        stream.shared.reclaim(&mut stream.shared.lock());
    };
    unsafe { free_handle(handle, &LIVE, end) };
}

/// Tells whether a first message is the worker's refusal: 1 and its words (owned bytes) if so, else 0.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_first_failure(message: *const u8, message_len: usize, out: *mut WrBytes) -> i32 {
    let mut refused = 0;
    guard(std::ptr::null_mut(), || {
        if let Some(words) = stream::first_failure(unsafe { input(message, message_len) }) {
            unsafe { give(out, WrBytes::owned(words.into_bytes())) }?;
            refused = 1;
        }
        Ok(())
    });
    refused
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::blank;
    use super::*;
    use crate::tokenizer::fixtures::{byte_level_file, load};

    pub(in crate::ffi) fn stream() -> *mut WrStream {
        let options = br#"{"id": "x", "created": 1, "model": "m", "streaming": true}"#;
        let tokenizer = WrTokenizer { tokenizer: Arc::new(load(&byte_level_file())), template: None };
        let mut handle = std::ptr::null_mut();
        let code =
            unsafe { wr_stream_new(&tokenizer, options.as_ptr(), options.len(), &mut handle, &mut blank()) };
        assert_eq!(code, 0);
        handle
    }
}
