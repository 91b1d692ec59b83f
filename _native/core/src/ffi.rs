//! The C ABI: the only unsafe code of the crate.
//!
//! Conventions, the same for every function:
//! - Input is (pointer, length), read during the call only. A null pointer with length 0 is empty input.
//! - A function that can fail returns 0 or a [`Code`] and then fills `err`, whose two byte strings the caller
//!   frees with `wr_bytes_free`.
//! - A handle is made by one function and freed by exactly one (`wr_tokenizer_free`, `wr_prepared_free`,
//!   `wr_stream_free`, `wr_net_free`, `wr_call_free`, `wr_follower_free`); a null handle may be freed.
//! - `WrTokenizer` and `WrPrepared` may be used by several threads at once; a `WrStream` by one at a time, beside
//!   the transport's own thread.
//! - A panic never crosses the boundary: it becomes [`Code::Internal`]. The stream it happened in is spent and
//!   answers every later call with that code.

mod http1;
mod net;
mod prefix;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::body;
use crate::error::{Code, Error, Result};
use crate::net::answer::{Answer, Inner, panicked, spent};
use crate::prepare::{self, Prepared};
use crate::stream::{self, Stream};
use crate::template::{ChatTemplate, ContentForm, Limits};
use crate::tokenizer::Tokenizer;

/// Goes up with every change of this file's functions or structs; the extension checks it on import.
pub const WR_ABI_VERSION: u32 = 7;

static TOKENIZERS: AtomicU64 = AtomicU64::new(0);
static PREPARED: AtomicU64 = AtomicU64::new(0);
static STREAMS: AtomicU64 = AtomicU64::new(0);
static NETS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Bytes that the core made. Owned ones (`cap` > 0) are freed by `wr_bytes_free`; borrowed ones (`cap` 0) live
/// until the next call on the handle they came from.
#[repr(C)]
pub struct WrBytes {
    pub ptr: *mut u8,
    pub len: usize,
    pub cap: usize,
}

impl WrBytes {
    const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0, cap: 0 };

    fn owned(bytes: Vec<u8>) -> Self {
        if bytes.capacity() == 0 {
            return Self::EMPTY;
        }
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), cap: bytes.capacity() }
    }

    fn borrowed(bytes: &[u8]) -> Self {
        Self { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), cap: 0 }
    }
}

/// Filled when a function fails; `message` and `param` are owned by the caller.
#[repr(C)]
pub struct WrError {
    pub code: i32,
    pub message: WrBytes,
    pub param: WrBytes,
}

/// A tokenizer with its chat template.
pub struct WrTokenizer {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
}

/// A rendered, tokenised and encoded request.
pub struct WrPrepared(Prepared);

/// What a `WrPrepared` holds; the pointers live as long as it does.
#[repr(C)]
pub struct WrPreparedView {
    pub prompt: *const u8,
    pub prompt_len: usize,
    pub ids: *const u32,
    pub ids_len: usize,
    /// How many of the ids the prompt cache had.
    pub ids_reused: usize,
    pub body: *const u8,
    pub body_len: usize,
    /// Tokens the worker may make at most; −1 when nothing limits them.
    pub max_new_tokens: i64,
}

/// The answer to one request, all its choices.
pub struct WrStream {
    shared: Arc<Answer>,
    /// What the last `wr_stream_take` or `wr_stream_rest` has lent out.
    taken: Vec<u8>,
}

/// Runs `body`; turns its error, or its panic, into a code and `err`.
fn guard(err: *mut WrError, body: impl FnOnce() -> Result<()>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    let Err(error) = outcome else { return 0 };
    if !err.is_null() {
        let filled = WrError {
            code: error.code as i32,
            message: WrBytes::owned(error.message.into_bytes()),
            param: WrBytes::owned(error.param.into_bytes()),
        };
        // SAFETY: the caller passes a pointer to a WrError that it owns.
        unsafe { err.write(filled) };
    }
    error.code as i32
}

/// As [`guard`], for a stream, whose lock is held meanwhile: a panic leaves it in an unknown state, so it is
/// spent from then on.
fn guard_stream(
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

fn null(what: &str) -> Error {
    Error::new(Code::Internal, format!("a null {what} was passed to the native core"))
}

/// # Safety
/// `ptr` points to `len` readable items that stay untouched for `'a`, or is null.
unsafe fn input<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if ptr.is_null() || len == 0 {
        return &[];
    }
    unsafe { slice::from_raw_parts(ptr, len) }
}

/// # Safety
/// As [`input`].
unsafe fn text<'a>(ptr: *const u8, len: usize) -> Result<&'a str> {
    std::str::from_utf8(unsafe { input(ptr, len) })
        .map_err(|_| Error::new(Code::InvalidRequest, "text is not valid UTF-8"))
}

/// # Safety
/// `tokenizer` is a live handle or null.
unsafe fn tokenizer<'a>(tokenizer: *const WrTokenizer) -> Result<&'a WrTokenizer> {
    unsafe { tokenizer.as_ref() }.ok_or_else(|| null("tokenizer"))
}

/// # Safety
/// `out` points to room for a `T` that the caller owns.
unsafe fn give<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(null("result"));
    }
    unsafe { out.write(value) };
    Ok(())
}

fn content_form(template: &ChatTemplate) -> &'static str {
    match template.content_form() {
        ContentForm::String => "string",
        ContentForm::Parts => "parts",
    }
}

fn limits(fuel: u64) -> Limits {
    let default = Limits::default();
    if fuel == 0 { default } else { Limits { fuel, ..default } }
}

/// Facts as a JSON object (owned bytes): `abi_version`, `live_handles` (`tokenizers`, `prepared`, `streams`, `nets`, `calls`,
/// `followers`) and `itl_bounds` (upper bounds in seconds of the inter-token buckets that `wr_stream_report` tells).
///
/// # Safety
/// `out` points to room for a `WrBytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_facts(out: *mut WrBytes) {
    let facts = serde_json::json!({
        "abi_version": WR_ABI_VERSION,
        "live_handles": {
            "tokenizers": TOKENIZERS.load(Ordering::Relaxed),
            "prepared": PREPARED.load(Ordering::Relaxed),
            "streams": STREAMS.load(Ordering::Relaxed),
            "nets": NETS.load(Ordering::Relaxed),
            "calls": CALLS.load(Ordering::Relaxed),
            "followers": prefix::live_followers(),
        },
        "itl_bounds": stream::ITL_BOUNDS,
    });
    let _ = unsafe { give(out, WrBytes::owned(facts.to_string().into_bytes())) };
}

/// How much work it is to decode a JSON text, see `body::work`.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_json_work(data: *const u8, len: usize) -> u64 {
    body::work(unsafe { input(data, len) })
}

/// Frees owned bytes; borrowed and empty ones are left alone.
///
/// # Safety
/// `bytes` came from this library and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_bytes_free(bytes: WrBytes) {
    if bytes.cap > 0 {
        drop(unsafe { Vec::from_raw_parts(bytes.ptr, bytes.len, bytes.cap) });
    }
}

/// Loads a tokenizer from a folder or a tokenizer.json, and its chat template. `template` (the template's text)
/// replaces the folder's own when it is not null. `prompt_cache`: how many bytes the ids of earlier prompts may
/// take, 0 for no cache.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_load(
    path: *const u8,
    path_len: usize,
    template: *const u8,
    template_len: usize,
    prompt_cache: usize,
    out: *mut *mut WrTokenizer,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let path = unsafe { text(path, path_len) }?;
        let mut tokenizer = Tokenizer::load(Path::new(path))?;
        tokenizer.cache_prompts(prompt_cache);
        let own = if template.is_null() { None } else { Some(unsafe { text(template, template_len) }?) };
        let template = own
            .or(tokenizer.chat_template_source())
            .map(|source| ChatTemplate::new(source, tokenizer.special_tokens()))
            .transpose()
            .map_err(|error| error.at("chat_template"))?;
        let handle = Box::new(WrTokenizer { tokenizer: Arc::new(tokenizer), template });
        unsafe { give(out, Box::into_raw(handle)) }?;
        trim_memory();
        TOKENIZERS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

/// Gives back what reading the files took: tens of MiB that every process would otherwise keep.
fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: glibc's own function, callable at any time.
        unsafe { malloc_trim(0) };
    }
}

/// # Safety
/// `handle` came from `wr_tokenizer_load` and is freed once; no other call on it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_free(handle: *mut WrTokenizer) {
    if !handle.is_null() {
        drop(unsafe { Box::from_raw(handle) });
        TOKENIZERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is known of a tokenizer, as a JSON object (owned bytes).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_info(
    handle: *const WrTokenizer,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let tokenizer = &handle.tokenizer;
        let info = serde_json::json!({
            "vocab_size": tokenizer.vocab_size(),
            "eos_token_ids": tokenizer.eos_token_ids(),
            "special_tokens": tokenizer.special_tokens(),
            "has_chat_template": handle.template.is_some(),
            "content_form": handle.template.as_ref().map(content_form),
            "model_max_length": tokenizer.model_max_length(),
            "backend": tokenizer.backend(),
        });
        unsafe { give(out, WrBytes::owned(info.to_string().into_bytes())) }
    })
}

/// Text to token ids (owned bytes: native-endian u32).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_encode(
    handle: *const WrTokenizer,
    data: *const u8,
    len: usize,
    add_special_tokens: bool,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let ids = handle.tokenizer.encode(unsafe { text(data, len) }?, add_special_tokens)?;
        let bytes = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
        unsafe { give(out, WrBytes::owned(bytes)) }
    })
}

/// Token ids to text (owned bytes: UTF-8).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_decode(
    handle: *const WrTokenizer,
    ids: *const u32,
    len: usize,
    skip_special_tokens: bool,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let decoded = handle.tokenizer.decode(unsafe { input(ids, len) }, skip_special_tokens);
        unsafe { give(out, WrBytes::owned(decoded.into_bytes())) }
    })
}

/// Renders a job's messages with the chat template (owned bytes: UTF-8). `fuel` 0 means the default.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_render(
    handle: *const WrTokenizer,
    job: *const u8,
    job_len: usize,
    fuel: u64,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let prompt = prepare::render_job(
            &handle.tokenizer,
            handle.template.as_ref(),
            unsafe { input(job, job_len) },
            &limits(fuel),
        )?;
        unsafe { give(out, WrBytes::owned(prompt.into_bytes())) }
    })
}

/// A job (JSON) to prompt, token ids and `GenerateRequest` bytes. `fuel` 0 means the default.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepare(
    handle: *const WrTokenizer,
    job: *const u8,
    job_len: usize,
    fuel: u64,
    out: *mut *mut WrPrepared,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let prepared = prepare::prepare(
            &handle.tokenizer,
            handle.template.as_ref(),
            unsafe { input(job, job_len) },
            &limits(fuel),
        )?;
        unsafe { give(out, Box::into_raw(Box::new(WrPrepared(prepared)))) }?;
        PREPARED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

/// # Safety
/// `handle` is live; `out` points to room for a `WrPreparedView`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepared_view(handle: *const WrPrepared, out: *mut WrPreparedView) {
    let Some(WrPrepared(prepared)) = (unsafe { handle.as_ref() }) else { return };
    let view = WrPreparedView {
        prompt: prepared.prompt.as_ptr(),
        prompt_len: prepared.prompt.len(),
        ids: prepared.input_ids.as_ptr(),
        ids_len: prepared.input_ids.len(),
        ids_reused: prepared.reused,
        body: prepared.body.as_ptr(),
        body_len: prepared.body.len(),
        max_new_tokens: prepared.max_new_tokens.map_or(-1, i64::from),
    };
    let _ = unsafe { give(out, view) };
}

/// # Safety
/// `handle` came from `wr_prepare` and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepared_free(handle: *mut WrPrepared) {
    if !handle.is_null() {
        drop(unsafe { Box::from_raw(handle) });
        PREPARED.fetch_sub(1, Ordering::Relaxed);
    }
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
        let stream = Box::new(WrStream { shared: Arc::new(Answer::new(stream)), taken: Vec::new() });
        unsafe { give(out, Box::into_raw(stream)) }?;
        STREAMS.fetch_add(1, Ordering::Relaxed);
        Ok(())
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
        } else {
            stats_json(stream.stats()).into_bytes()
        };
        unsafe { give(out, WrBytes::owned(told)) }
    })
}

/// # Safety
/// `handle` came from `wr_stream_new` and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_free(handle: *mut WrStream) {
    if !handle.is_null() {
        let WrStream { shared, .. } = *unsafe { Box::from_raw(handle) };
        // A call that still runs may hold the answer, but must not touch the socket.
        shared.reclaim(&mut shared.lock());
        STREAMS.fetch_sub(1, Ordering::Relaxed);
    }
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
mod tests {
    use super::*;

    pub(super) fn blank() -> WrError {
        WrError { code: 0, message: WrBytes::EMPTY, param: WrBytes::EMPTY }
    }

    fn message(error: &WrError) -> String {
        String::from_utf8(unsafe { input(error.message.ptr, error.message.len) }.to_vec()).unwrap()
    }

    #[test]
    fn a_panic_becomes_an_internal_error() {
        let mut error = blank();
        let code = guard(&mut error, || panic!("boom {}", 1));
        assert_eq!(code, Code::Internal as i32);
        assert_eq!(message(&error), "the native core panicked: boom 1");
        unsafe { wr_bytes_free(error.message) };
    }

    #[test]
    fn an_error_keeps_code_message_and_param() {
        let mut error = blank();
        let code = guard(&mut error, || Err(Error::new(Code::ContextLength, "too long").at("messages")));
        assert_eq!((code, error.code), (2, 2));
        assert_eq!(message(&error), "too long");
        unsafe {
            wr_bytes_free(error.message);
            wr_bytes_free(error.param);
        }
    }

    #[test]
    fn null_handles_are_errors_and_may_be_freed() {
        let mut error = blank();
        let mut flags = 0;
        let code = unsafe { wr_stream_end(std::ptr::null_mut(), 0, &mut flags, &mut error) };
        assert_eq!(code, Code::Internal as i32);
        unsafe {
            wr_bytes_free(error.message);
            wr_stream_free(std::ptr::null_mut());
            wr_prepared_free(std::ptr::null_mut());
            wr_tokenizer_free(std::ptr::null_mut());
        }
    }
}
