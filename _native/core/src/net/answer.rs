//! An answer that the transport's thread feeds while Python takes its bytes, or has lent the client's socket.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::socket::{Socket, Stop};
use crate::error::{Code, Error, Result};
use crate::stream::Stream;

thread_local! {
    /// Memory that bytes pass through on their way to lent sockets. They are written at once, so that one is
    /// enough for all of a thread's answers.
    static PASSAGE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Where the bytes go.
enum Sink {
    /// They wait to be taken.
    Ready,
    Socket(Socket),
}

/// The stream of one request, shared by its handle and its calls.
pub struct Answer {
    inner: Mutex<Inner>,
    room: Notify,
}

/// What is behind the lock.
pub struct Inner {
    pub stream: Stream,
    /// A panic has left the stream in an unknown state.
    pub spent: bool,
    sink: Sink,
    /// What a socket did not take and was not told yet.
    rest: Vec<u8>,
    /// Messages whose bytes wait to be taken.
    waiting: usize,
    /// A call waits for room.
    parked: bool,
}

impl Answer {
    pub fn new(stream: Stream) -> Self {
        let inner =
            Inner { stream, spent: false, sink: Sink::Ready, rest: Vec::new(), waiting: 0, parked: false };
        Self { inner: Mutex::new(inner), room: Notify::new() }
    }

    /// Panics in the stream are caught within the lock, so it is never poisoned.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the answer takes more messages: fewer than `limit` wait, or the socket goes on.
    pub async fn room(&self, limit: usize) {
        loop {
            // Made before the look, so that what happens in between wakes it.
            let changed = self.room.notified();
            {
                let mut inner = self.lock();
                if !inner.is_full(limit) {
                    return;
                }
                inner.parked = true;
            }
            changed.await;
        }
    }

    /// Swaps the ready bytes into `taken`, whose memory is used for the next ones.
    pub fn take(&self, inner: &mut Inner, taken: &mut Vec<u8>) {
        inner.stream.swap(taken);
        inner.waiting = 0;
        self.wake(inner);
    }

    /// From now on bytes go to the socket.
    pub fn lend(&self, inner: &mut Inner, fd: BorrowedFd<'static>) {
        inner.sink = Sink::Socket(Socket::new(fd));
        inner.waiting = 0;
        inner.flush();
        self.wake(inner);
    }

    /// The socket's owner has sent the rest. A rest that was not told yet must be sent first.
    pub fn resume(&self, inner: &mut Inner) {
        let Sink::Socket(socket) = &mut inner.sink else { return };
        if socket.is_blocked() && inner.rest.is_empty() {
            socket.resume();
            inner.flush();
            self.wake(inner);
        }
    }

    /// The socket is not touched any more. Returns how much was written, 0 if none was lent.
    pub fn reclaim(&self, inner: &mut Inner) -> u64 {
        let sink = std::mem::replace(&mut inner.sink, Sink::Ready);
        self.wake(inner);
        match sink {
            Sink::Ready => 0,
            Sink::Socket(socket) => socket.written(),
        }
    }

    fn wake(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.parked) {
            self.room.notify_waiters();
        }
    }
}

impl Inner {
    /// Feeds one message; a panic is an error, and the stream is spent then.
    pub fn feed(&mut self, choice: u32, message: &[u8]) -> Result<u32> {
        self.guarded(|stream| stream.feed(choice, message))
    }

    /// Counts fed messages whose bytes nobody has taken.
    pub fn count(&mut self, messages: usize) {
        self.waiting = if self.stream.buffer().is_empty() { 0 } else { self.waiting + messages };
    }

    pub fn guarded<T>(&mut self, work: impl FnOnce(&mut Stream) -> Result<T>) -> Result<T> {
        if self.spent {
            return Err(spent());
        }
        catch_unwind(AssertUnwindSafe(|| work(&mut self.stream))).unwrap_or_else(|panic| {
            self.spent = true;
            Err(panicked(&*panic))
        })
    }

    /// Before a burst: what is to be written at once needs no memory of the stream's own.
    pub fn equip(&mut self) {
        if self.is_lent() && self.stream.buffer().is_empty() {
            self.stream.swap(&mut PASSAGE.take());
        }
    }

    /// Writes what is ready to a lent socket that goes on. Some: it has stopped with that.
    pub fn flush(&mut self) -> Option<Stop> {
        let Sink::Socket(socket) = &mut self.sink else { return None };
        let mut stop = None;
        if !socket.is_blocked() && !self.stream.buffer().is_empty() {
            stop = socket.write(self.stream.buffer(), &mut self.rest);
            self.stream.clear();
        }
        if self.stream.buffer().is_empty() {
            let mut memory = Vec::new();
            self.stream.swap(&mut memory);
            PASSAGE.set(memory);
        }
        stop
    }

    /// Writes a chunk of the caller's to a lent socket, if that was idle for so long and goes on.
    pub fn ping(&mut self, content: &[u8], idle: Duration) {
        let Sink::Socket(socket) = &mut self.sink else { return };
        if !content.is_empty() && !socket.is_blocked() && socket.idle() >= idle {
            socket.write(content, &mut self.rest);
        }
    }

    /// Moves what a socket did not take into `taken`.
    pub fn rest(&mut self, taken: &mut Vec<u8>) {
        taken.clear();
        std::mem::swap(&mut self.rest, taken);
    }

    /// Is the answer written to a socket?
    pub fn is_lent(&self) -> bool {
        matches!(self.sink, Sink::Socket(_))
    }

    /// Shall calls wait before they read on?
    pub fn is_full(&self, limit: usize) -> bool {
        match &self.sink {
            Sink::Ready => self.waiting >= limit,
            Sink::Socket(socket) => socket.is_blocked(),
        }
    }
}

/// The error of a stream that a panic has left behind.
pub fn spent() -> Error {
    Error::new(Code::Internal, "the stream failed before")
}

/// The error for a caught panic.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    Error::new(Code::Internal, format!("the native core panicked: {text}"))
}
