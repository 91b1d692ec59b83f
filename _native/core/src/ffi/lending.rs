//! A client's socket, lent to an answer: that part of the C ABI, under the conventions of [`super`].

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::streams::{WrStream, guard_stream};
use super::*;

/// Lends the client's socket: what is ready, and what will be, is written to it as chunks of HTTP/1.1, with no
/// last chunk. Ask `wr_stream_rest` afterwards, as after each call of yours that may write (`wr_stream_feed`,
/// `wr_stream_end`, `wr_stream_fail`, `wr_stream_ping`, `wr_stream_resume`): events tell only of what the
/// transport's own thread could not write.
///
/// # Safety
/// `fd` is an open socket that does not block, and stays open until `wr_stream_reclaim` or `wr_stream_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_lend(handle: *mut WrStream, fd: i32, err: *mut WrError) -> i32 {
    guard_stream(handle, err, |shared, inner, taken| {
        if fd < 0 {
            return Err(Error::new(Code::Internal, "no socket was lent"));
        }
        *taken = Vec::new();
        // SAFETY: the caller keeps it open until it takes it back, or frees the stream.
        shared.lend(inner, unsafe { BorrowedFd::borrow_raw(fd) });
        Ok(())
    })
}

/// What the socket did not take, framed, to be sent by the caller (borrowed until the next call on this stream).
/// Empty if it has taken everything, or if this was told already. May be asked after `wr_stream_reclaim` too.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_rest(handle: *mut WrStream, out: *mut WrBytes, err: *mut WrError) -> i32 {
    guard_stream(handle, err, |_, inner, taken| {
        inner.rest(taken);
        unsafe { give(out, WrBytes::borrowed(taken)) }
    })
}

/// The rest was sent: what has come meanwhile is written, and the calls go on. Nothing happens if the socket is
/// not blocked.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_resume(handle: *mut WrStream, err: *mut WrError) -> i32 {
    guard_stream(handle, err, |shared, inner, _| {
        shared.resume(inner);
        Ok(())
    })
}

/// Takes the socket back: when this returns it is not touched any more, and bytes are for `wr_stream_take` again.
/// `written` (may be null): bytes of the chunks' contents that were sent, or handed over as the rest.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_reclaim(
    handle: *mut WrStream,
    written: *mut u64,
    err: *mut WrError,
) -> i32 {
    // A spent stream gives its socket back too.
    let Some(WrStream { shared, .. }) = (unsafe { handle.as_ref() }) else {
        return guard(err, || Err(null("stream")));
    };
    let count = shared.reclaim(&mut shared.lock());
    if !written.is_null() {
        unsafe { written.write(count) };
    }
    0
}

/// Writes `data` as a chunk to a lent socket, if nothing was written for `idle_ms` and it is not blocked.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_stream_ping(
    handle: *mut WrStream,
    data: *const u8,
    len: usize,
    idle_ms: u64,
    err: *mut WrError,
) -> i32 {
    guard_stream(handle, err, |_, inner, _| {
        inner.ping(unsafe { input(data, len) }, Duration::from_millis(idle_ms));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::super::streams::tests::stream;
    use super::super::streams::{wr_stream_fail, wr_stream_free, wr_stream_take};
    use super::*;

    fn borrowed(bytes: &WrBytes) -> &[u8] {
        unsafe { input(bytes.ptr, bytes.len) }
    }

    #[test]
    fn a_lent_socket_gets_what_python_says() {
        let stream = stream();
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut got = vec![0; 4096];
        let mut received = || std::io::Read::read(&mut &theirs, &mut got).map(|count| got[..count].to_vec());
        let mut bytes = WrBytes::EMPTY;
        let mut written = 0;
        let error = b"{\"error\": {}}";
        unsafe {
            assert_ne!(wr_stream_lend(stream, -1, std::ptr::null_mut()), 0);
            assert_eq!(wr_stream_lend(stream, ours.as_raw_fd(), std::ptr::null_mut()), 0);
            assert!(received().is_err());
            assert_eq!(wr_stream_fail(stream, error.as_ptr(), error.len(), std::ptr::null_mut()), 0);
            let content = "data: {\"error\": {}}\n\ndata: [DONE]\n\n";
            let chunk = format!("{:X}\r\n{content}\r\n", content.len());
            assert_eq!(received().unwrap(), chunk.as_bytes());
            assert_eq!(wr_stream_rest(stream, &mut bytes, std::ptr::null_mut()), 0);
            assert!(borrowed(&bytes).is_empty());
            assert_eq!(wr_stream_resume(stream, std::ptr::null_mut()), 0);
            assert_eq!(wr_stream_ping(stream, b"::".as_ptr(), 2, 0, std::ptr::null_mut()), 0);
            assert_eq!(received().unwrap(), b"2\r\n::\r\n");
            assert_eq!(wr_stream_reclaim(stream, &mut written, std::ptr::null_mut()), 0);
            assert_eq!(written, content.len() as u64 + 2);
            assert_eq!(wr_stream_take(stream, &mut bytes, std::ptr::null_mut()), 0);
            assert!(borrowed(&bytes).is_empty());
            wr_stream_free(stream);
        }
    }
}
