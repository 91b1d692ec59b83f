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
mod jobs;
mod lending;
mod net;
mod prefix;
mod streams;
mod tokenizers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::body;
use crate::error::{Code, Error, Result};
use crate::net::answer::panicked;
use crate::stream;

/// Goes up with every change of the ABI's functions or structs; the extension checks it on import.
pub const WR_ABI_VERSION: u32 = 8;

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
/// `out` points to room for a `T` that the caller owns.
unsafe fn give<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(null("result"));
    }
    unsafe { out.write(value) };
    Ok(())
}

/// Gives a new handle to the caller; `live` counts those that are not freed.
///
/// # Safety
/// As [`give`].
unsafe fn give_handle<T>(out: *mut *mut T, handle: T, live: &AtomicU64) -> Result<()> {
    unsafe { give(out, Box::into_raw(Box::new(handle))) }?;
    live.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Ends a handle with `end`; a null one is none.
///
/// # Safety
/// `handle` came from [`give_handle`] with the same `live`, is freed once and not used by anybody, or is null.
unsafe fn free_handle<T>(handle: *mut T, live: &AtomicU64, end: impl FnOnce(Box<T>)) {
    if !handle.is_null() {
        end(unsafe { Box::from_raw(handle) });
        live.fetch_sub(1, Ordering::Relaxed);
    }
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
            "tokenizers": tokenizers::LIVE.load(Ordering::Relaxed),
            "prepared": jobs::LIVE.load(Ordering::Relaxed),
            "streams": streams::LIVE.load(Ordering::Relaxed),
            "nets": net::LIVE_NETS.load(Ordering::Relaxed),
            "calls": net::LIVE_CALLS.load(Ordering::Relaxed),
            "followers": prefix::LIVE.load(Ordering::Relaxed),
        },
        "itl_bounds": stream::ITL_BOUNDS,
    });
    let _ = unsafe { give(out, WrBytes::owned(facts.to_string().into_bytes())) };
}

/// Makes the heap ready for forks: what is free goes back to the system, or is never used again.
#[unsafe(no_mangle)]
pub extern "C" fn wr_settle_heap() {
    trim_memory();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    crate::heap::fill();
}

/// Gives back what is free, where the system's allocator would keep it.
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

#[cfg(test)]
mod tests {
    use super::jobs::wr_prepared_free;
    use super::streams::{wr_stream_end, wr_stream_free};
    use super::tokenizers::wr_tokenizer_free;
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
