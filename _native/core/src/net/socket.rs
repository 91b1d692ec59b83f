//! The client's socket, lent to the core: chunks of HTTP/1.1, each by one `sendmsg`.

use std::io::{IoSlice, Write as _};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Why a socket takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its buffer is full.
    Full,
    /// The client is gone.
    Broken,
}

/// A lent socket. Its owner keeps it open for as long as this exists.
pub struct Socket {
    fd: BorrowedFd<'static>,
    blocked: bool,
    written: u64,
    last: Instant,
}

impl Socket {
    pub fn new(fd: BorrowedFd<'static>) -> Self {
        Self { fd, blocked: false, written: 0, last: Instant::now() }
    }

    /// It has stopped, and its owner has not said yet that it goes on.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub fn resume(&mut self) {
        self.blocked = false;
        self.last = Instant::now();
    }

    /// Bytes of the chunks' contents: sent, or handed over as `rest`.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn idle(&self) -> Duration {
        self.last.elapsed()
    }

    /// Writes `content`, which is not empty, as a chunk. What the socket does not take is appended to `rest`,
    /// and the socket is blocked from then on.
    pub fn write(&mut self, content: &[u8], rest: &mut Vec<u8>) -> Option<Stop> {
        let mut line = [0; 18];
        let room = line.len();
        let mut left = &mut line[..];
        write!(left, "{:X}\r\n", content.len()).expect("the longest number fits");
        let head = room - left.len();
        let parts = [&line[..head], content, b"\r\n"];
        self.written += content.len() as u64;
        self.last = Instant::now();
        let (sent, why) = match self.send(parts) {
            Ok(sent) => (sent, Stop::Full),
            Err(Errno::AGAIN) => (0, Stop::Full),
            Err(_) => (0, Stop::Broken),
        };
        let mut skip = sent;
        for part in parts {
            let from = skip.min(part.len());
            rest.extend_from_slice(&part[from..]);
            skip -= from;
        }
        self.blocked = sent < parts.iter().map(|part| part.len()).sum();
        self.blocked.then_some(why)
    }

    fn send(&self, parts: [&[u8]; 3]) -> Result<usize, Errno> {
        let slices = parts.map(IoSlice::new);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        retry_on_intr(|| sendmsg(self.fd, &slices, &mut SendAncillaryBuffer::default(), flags))
    }
}
