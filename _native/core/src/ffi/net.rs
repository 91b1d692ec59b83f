//! The native transport's part of the C ABI, under the conventions of [`super`].
//!
//! `WrNet` and `WrCall` may be used by several threads at once, but for `wr_net_events`, which one thread calls
//! at a time. All of them belong to the process that made the net: after a fork they are not touched.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::streams::WrStream;
use super::*;
use crate::net::events::{Event, What};
use crate::net::socket::Stop;
use crate::net::{Call, Net, Options};

pub(super) static LIVE_NETS: AtomicU64 = AtomicU64::new(0);
pub(super) static LIVE_CALLS: AtomicU64 = AtomicU64::new(0);

/// The process's connections to its workers, with a thread of their own.
pub struct WrNet {
    net: Net,
    told: Mutex<Told>,
}

/// What the last `wr_net_events` has told.
#[derive(Default)]
struct Told {
    /// What `views` point into.
    events: Vec<Event>,
    views: Vec<WrEvent>,
}

/// One gRPC call.
pub struct WrCall(Call);

/// What `WrEvent::kind` says.
#[repr(C)]
pub enum WrEventKind {
    /// `messages` of the worker were fed to the call's stream, with `flags` (`stream::flags`) of all of them. Where
    /// those say that it failed, `data` is the message that led to it; else it is null.
    Fed = 0,
    /// `data` is a message that was not fed.
    Message = 1,
    /// The call's last event: `status` is a gRPC code, `data` its details; `flags` may be `WR_SILENT`.
    Ended = 2,
    /// The client's socket takes no more: see `wr_stream_rest`. `status` is 1 if it is broken, else 0.
    Blocked = 3,
}

/// Flag of an ended call: its worker was silent for too long.
pub const WR_SILENT: u32 = 1;

/// Something that happened to a call; the pointer lives until the next `wr_net_events`.
#[repr(C)]
pub struct WrEvent {
    /// As given to `wr_net_generate` or `wr_net_unary`.
    pub tag: u64,
    /// A `WrEventKind`.
    pub kind: u32,
    pub flags: u32,
    pub messages: u32,
    pub status: i32,
    pub data: *const u8,
    pub len: usize,
}

impl WrEvent {
    /// The pointer is into `event`, which may be moved.
    fn view(event: &Event) -> Self {
        let view = |kind: WrEventKind, data: &[u8]| Self {
            tag: event.tag,
            kind: kind as u32,
            flags: 0,
            messages: 0,
            status: 0,
            data: data.as_ptr(),
            len: data.len(),
        };
        match &event.what {
            What::Fed { messages, flags, failed } => {
                let fed = view(WrEventKind::Fed, failed.as_deref().unwrap_or_default());
                let data = if failed.is_some() { fed.data } else { std::ptr::null() };
                Self { flags: *flags, messages: *messages, data, ..fed }
            }
            What::Message(message) => Self { messages: 1, ..view(WrEventKind::Message, message) },
            What::Blocked(stop) => {
                Self { status: i32::from(*stop == Stop::Broken), ..view(WrEventKind::Blocked, &[]) }
            }
            What::Ended(status) => {
                let flags = if status.silent { WR_SILENT } else { 0 };
                let ended = view(WrEventKind::Ended, status.details.as_bytes());
                Self { status: status.code, flags, ..ended }
            }
        }
    }
}

/// # Safety
/// `handle` is live or null.
unsafe fn net<'a>(handle: *const WrNet) -> Result<&'a WrNet> {
    unsafe { handle.as_ref() }.ok_or_else(|| null("net"))
}

/// Starts the transport's thread. `options` is the JSON object that `net::Options` describes, but for the roots of
/// TLS: those are PEM. Made after a fork.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_new(
    options: *const u8,
    options_len: usize,
    roots: *const u8,
    roots_len: usize,
    out: *mut *mut WrNet,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let mut options = Options::from_json(unsafe { input(options, options_len) })?;
        if let Some(tls) = &mut options.tls {
            tls.roots = String::from_utf8_lossy(unsafe { input(roots, roots_len) }).into_owned();
        }
        let net = WrNet { net: Net::new(options)?, told: Mutex::default() };
        unsafe { give_handle(out, net, &LIVE_NETS) }
    })
}

/// An eventfd, not blocking, that is readable when `wr_net_events` has something to tell. It lives as long as
/// the net.
///
/// # Safety
/// `handle` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_fd(handle: *const WrNet) -> i32 {
    unsafe { net(handle) }.map_or(-1, |handle| handle.net.fd().as_raw_fd())
}

/// Makes the eventfd unreadable and tells what has happened. The events live until the next call.
///
/// # Safety
/// `handle` is live; no other thread is in this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_events(handle: *mut WrNet, out: *mut *const WrEvent, count: *mut usize) {
    let _ = unsafe { give(count, 0) };
    guard(std::ptr::null_mut(), || {
        let handle = unsafe { net(handle) }?;
        let mut told = handle.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Told { events, views } = &mut *told;
        views.clear();
        events.clear();
        handle.net.fetch(events);
        views.extend(events.iter().map(WrEvent::view));
        unsafe { give(out, views.as_ptr()) }?;
        unsafe { give(count, views.len()) }
    });
}

/// Opens `Generate` at a worker (`grpc://HOST:PORT`, or `grpcs://` with TLS). With a stream, its messages are fed
/// to it as of `choice`; without one they come as events. `first_ms` is how long the worker may be silent before
/// the first message, `token_ms` between messages; 0: for ever. It starts with the next `wr_net_submit`.
///
/// # Safety
/// See the module's conventions. The stream may be freed before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_generate(
    handle: *mut WrNet,
    url: *const u8,
    url_len: usize,
    request: *const u8,
    request_len: usize,
    stream: *mut WrStream,
    choice: u32,
    tag: u64,
    first_ms: u64,
    token_ms: u64,
    out: *mut *mut WrCall,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let answer = unsafe { stream.as_ref() }.map(|stream| (Arc::clone(&stream.shared), choice));
        let call = unsafe { net(handle) }?.net.generate(
            unsafe { text(url, url_len) }?,
            unsafe { input(request, request_len) },
            answer,
            tag,
            Duration::from_millis(first_ms),
            Duration::from_millis(token_ms),
        )?;
        unsafe { give_handle(out, WrCall(call), &LIVE_CALLS) }
    })
}

/// Starts all calls that wait for it.
///
/// # Safety
/// `handle` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_submit(handle: *const WrNet) {
    guard(std::ptr::null_mut(), || {
        unsafe { net(handle) }?.net.submit();
        Ok(())
    });
}

/// Calls a method with one answer, by its short name (`HealthCheck`). `timeout_ms` 0: no deadline.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_unary(
    handle: *mut WrNet,
    url: *const u8,
    url_len: usize,
    method: *const u8,
    method_len: usize,
    request: *const u8,
    request_len: usize,
    tag: u64,
    timeout_ms: u64,
    out: *mut *mut WrCall,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let call = unsafe { net(handle) }?.net.unary(
            unsafe { text(url, url_len) }?,
            unsafe { text(method, method_len) }?,
            unsafe { input(request, request_len) },
            tag,
            Duration::from_millis(timeout_ms),
        )?;
        unsafe { give_handle(out, WrCall(call), &LIVE_CALLS) }
    })
}

/// Cancels a call, if it still runs. When this returns nothing of it is fed any more, and no event of it follows.
/// `unfed`: only if no message of it was fed. Returns whether it was cancelled.
///
/// # Safety
/// `handle` is live or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_call_cancel(handle: *mut WrCall, unfed: bool) -> bool {
    let Some(WrCall(call)) = (unsafe { handle.as_ref() }) else { return false };
    if unfed {
        return call.withdraw();
    }
    call.cancel();
    true
}

/// Holds what the worker sends, until `wr_call_give`; to be called before the call is submitted.
///
/// # Safety
/// `handle` is live or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_call_hold(handle: *mut WrCall) {
    if let Some(WrCall(call)) = unsafe { handle.as_ref() } {
        call.hold();
    }
}

/// Delivers a message (a `GenerateResponse`) before the worker's own, which were held. Once; else it does nothing.
///
/// # Safety
/// `handle` is live or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_call_give(handle: *mut WrCall, message: *const u8, message_len: usize) {
    if let Some(WrCall(call)) = unsafe { handle.as_ref() } {
        call.give(unsafe { input(message, message_len) });
    }
}

/// Cancels and frees.
///
/// # Safety
/// `handle` came from `wr_net_generate` or `wr_net_unary` and is freed once; its net may be freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_call_free(handle: *mut WrCall) {
    unsafe { free_handle(handle, &LIVE_CALLS, drop) };
}

/// Drops the connections to a worker; its calls end with UNAVAILABLE.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_forget(handle: *mut WrNet, url: *const u8, url_len: usize) {
    guard(std::ptr::null_mut(), || {
        unsafe { net(handle) }?.net.forget(unsafe { text(url, url_len) }?);
        Ok(())
    });
}

/// Milliseconds since anything of a call came from a worker, −1 if nothing ever did.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_heard(handle: *const WrNet, url: *const u8, url_len: usize) -> i64 {
    let (Ok(handle), Ok(url)) = (unsafe { net(handle) }, unsafe { text(url, url_len) }) else {
        return -1;
    };
    handle.net.heard(url)
}

/// Cancels all calls and ends the thread.
///
/// # Safety
/// `handle` came from `wr_net_new` and is freed once; no other call on it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_net_free(handle: *mut WrNet) {
    unsafe { free_handle(handle, &LIVE_NETS, drop) };
}

#[cfg(test)]
mod tests {
    use super::super::streams::tests::stream;
    use super::super::streams::wr_stream_free;
    use super::super::tests::blank;
    use super::*;

    #[test]
    fn a_fed_event_has_data_if_it_has_a_message() {
        let view =
            |failed| WrEvent::view(&Event { tag: 1, what: What::Fed { messages: 2, flags: 3, failed } });
        let none = view(None);
        assert_eq!((none.tag, none.messages, none.flags), (1, 2, 3));
        assert!(none.data.is_null());
        let empty = view(Some(bytes::Bytes::new()));
        assert!(!empty.data.is_null());
        assert_eq!(empty.len, 0);
    }

    #[test]
    fn a_call_s_end_is_told_through_handles() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut handle = std::ptr::null_mut();
        let mut call = std::ptr::null_mut();
        let stream = stream();
        unsafe {
            assert_eq!(wr_net_new(b"{}".as_ptr(), 2, std::ptr::null(), 0, &mut handle, &mut blank()), 0);
            assert!(wr_net_fd(handle) >= 0);
            let (at, len) = (gone.as_ptr(), gone.len());
            let request = b"request";
            let (body, size) = (request.as_ptr(), request.len());
            let code =
                wr_net_generate(handle, at, len, body, size, stream, 0, 77, 0, 0, &mut call, &mut blank());
            assert_eq!(code, 0);
            wr_net_submit(handle);
            let (mut events, mut count) = (std::ptr::null(), 0);
            while count == 0 {
                std::thread::sleep(Duration::from_millis(5));
                wr_net_events(handle, &mut events, &mut count);
            }
            let told = input(events, count);
            assert_eq!((count, told[0].tag, told[0].kind), (1, 77, WrEventKind::Ended as u32));
            assert_eq!((told[0].status, told[0].flags), (14, 0));
            let words = String::from_utf8_lossy(input(told[0].data, told[0].len));
            assert!(words.starts_with(&format!("connect to {gone} failed: ")), "{words}");
            assert_eq!(wr_net_heard(handle, at, len), -1);
            wr_net_forget(handle, at, len);
            // In any order.
            wr_stream_free(stream);
            wr_net_free(handle);
            assert!(wr_call_cancel(call, true));
            assert!(wr_call_cancel(call, false));
            wr_call_free(call);
        }
    }

    #[test]
    fn wrong_arguments_are_errors_and_null_handles_may_be_freed() {
        let (mut handle, mut call) = (std::ptr::null_mut(), std::ptr::null_mut());
        let internal = Code::Internal as i32;
        unsafe {
            let options = br#"{"threads": 4}"#;
            let code = wr_net_new(
                options.as_ptr(),
                options.len(),
                std::ptr::null(),
                0,
                &mut handle,
                std::ptr::null_mut(),
            );
            assert_eq!(code, internal);
            let null = std::ptr::null_mut();
            let (at, len) = (b"h:1".as_ptr(), 3);
            let code =
                wr_net_unary(null, at, len, b"M".as_ptr(), 1, at, 0, 1, 0, &mut call, std::ptr::null_mut());
            assert_eq!(code, internal);
            assert_eq!(wr_net_fd(null), -1);
            assert_eq!(wr_net_heard(null, at, len), -1);
            let (mut events, mut count) = (std::ptr::null(), 7);
            wr_net_events(null, &mut events, &mut count);
            assert_eq!(count, 0);
            wr_net_forget(null, at, len);
            assert!(!wr_call_cancel(std::ptr::null_mut(), false));
            wr_call_free(std::ptr::null_mut());
            wr_net_free(null);
        }
    }
}
