//! HTTP/1.1 over one kept connection: as much of it as a load client needs, and no more work a byte than that.

use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const READ: usize = 64 << 10;
const LARGEST_HEAD: usize = 64 << 10;

/// The start of a response.
pub struct Head {
    pub status: u16,
    pub event_stream: bool,
    framing: Framing,
    keep: bool,
}

/// How the body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length(u64),
    Chunked,
    Close,
}

/// Where the reader stands in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chunk {
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Done,
}

pub struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    at: usize,
    /// False once the server said, or its framing means, that this was the last response.
    pub reusable: bool,
}

fn bad(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Connection> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Connection { socket, buffer: Vec::with_capacity(READ), at: 0, reusable: true })
    }

    /// Whether a kept connection still waits: the server has neither closed it nor sent anything.
    pub fn fresh(&self) -> bool {
        let mut byte = [0];
        self.at == self.buffer.len()
            && matches!(self.socket.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a whole request and reads the response's head.
    pub async fn request(&mut self, request: &[u8]) -> io::Result<Head> {
        self.socket.write_all(request).await?;
        loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = memchr::memmem::find(rest, b"\r\n\r\n") {
                let head = parse_head(&rest[..end])?;
                self.at += end + 4;
                self.reusable = head.keep && head.framing != Framing::Close;
                return Ok(head);
            }
            if rest.len() > LARGEST_HEAD {
                return Err(bad("response head too large"));
            }
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A reader for the body after `head`.
    pub fn body<'a>(&'a mut self, head: &Head) -> Body<'a> {
        let chunk = if head.framing == Framing::Length(0) { Chunk::Done } else { Chunk::Size };
        Body { connection: self, framing: head.framing, chunk }
    }

    /// Reads once; the number of bytes, 0 at the end.
    async fn fill(&mut self) -> io::Result<usize> {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.reserve(READ);
        self.socket.read_buf(&mut self.buffer).await
    }

    fn take(&mut self, most: u64, out: &mut Vec<u8>) -> u64 {
        let ready = &self.buffer[self.at..];
        let count = ready.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        out.extend_from_slice(&ready[..count]);
        self.at += count;
        count as u64
    }

    /// The next line without its end, if it is all here.
    fn line(&mut self) -> Option<&[u8]> {
        let start = self.at;
        let len = memchr::memchr(b'\n', &self.buffer[start..])?;
        self.at += len + 1;
        Some(self.buffer[start..start + len].trim_ascii_end())
    }
}

pub struct Body<'a> {
    connection: &'a mut Connection,
    framing: Framing,
    chunk: Chunk,
}

impl Body<'_> {
    /// Puts what is there (at least one byte) into `out`, reading once if nothing is; false at the end.
    pub async fn next(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        out.clear();
        loop {
            self.drain(out)?;
            if !out.is_empty() {
                return Ok(true);
            }
            if self.chunk == Chunk::Done {
                return Ok(false);
            }
            if self.connection.fill().await? == 0 {
                return match self.framing {
                    Framing::Close => {
                        self.chunk = Chunk::Done;
                        Ok(false)
                    }
                    _ => Err(bad("the connection ended inside a body")),
                };
            }
        }
    }

    fn drain(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self.framing {
            Framing::Close => {
                self.connection.take(u64::MAX, out);
                Ok(())
            }
            Framing::Length(left) => {
                let left = left - self.connection.take(left, out);
                self.framing = Framing::Length(left);
                if left == 0 {
                    self.chunk = Chunk::Done;
                }
                Ok(())
            }
            Framing::Chunked => self.drain_chunks(out),
        }
    }

    fn drain_chunks(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            self.chunk = match self.chunk {
                Chunk::Done => return Ok(()),
                Chunk::Data(left) => match left - self.connection.take(left, out) {
                    0 => Chunk::DataEnd,
                    left => {
                        self.chunk = Chunk::Data(left);
                        return Ok(());
                    }
                },
                state => {
                    let Some(line) = self.connection.line() else {
                        return Ok(());
                    };
                    after_line(state, line)?
                }
            };
        }
    }
}

/// The state a line between chunks leads to.
fn after_line(state: Chunk, line: &[u8]) -> io::Result<Chunk> {
    match state {
        Chunk::Size => match chunk_size(line)? {
            0 => Ok(Chunk::Trailers),
            size => Ok(Chunk::Data(size)),
        },
        Chunk::DataEnd if line.is_empty() => Ok(Chunk::Size),
        Chunk::DataEnd => Err(bad("a chunk is longer than its size")),
        Chunk::Trailers if line.is_empty() => Ok(Chunk::Done),
        other => Ok(other),
    }
}

fn chunk_size(line: &[u8]) -> io::Result<u64> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .ok_or_else(|| bad("bad chunk size"))
}

fn parse_head(head: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(head).map_err(|_| bad("response head is not UTF-8"))?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok())
        .ok_or_else(|| bad("bad status line"))?;
    let mut parsed = Head { status, event_stream: false, framing: Framing::Close, keep: true };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" if parsed.framing != Framing::Chunked => {
                parsed.framing = Framing::Length(value.parse().map_err(|_| bad("bad content-length"))?);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => parsed.framing = Framing::Chunked,
            "connection" => parsed.keep = !value.eq_ignore_ascii_case("close"),
            "content-type" => parsed.event_stream = value.starts_with("text/event-stream"),
            _ => {}
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Sends `response` in pieces of `size` bytes and returns what the client read of its body.
    async fn read(response: &'static [u8], size: usize) -> io::Result<(Vec<u8>, bool)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            // Closing with the request unread would reset the connection.
            let mut request = [0; 64];
            assert!(socket.read(&mut request).await.unwrap() > 0);
            for piece in response.chunks(size) {
                socket.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut connection = Connection::open(&address).await?;
        let head = connection.request(b"GET / HTTP/1.1\r\n\r\n").await?;
        let (mut all, mut part) = (Vec::new(), Vec::new());
        let mut body = connection.body(&head);
        while body.next(&mut part).await? {
            all.extend_from_slice(&part);
        }
        server.await.unwrap();
        Ok((all, connection.reusable))
    }

    #[tokio::test]
    async fn bodies_of_every_framing_in_every_cut() {
        let chunked: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        let length: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let close: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nrest";
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(read(chunked, size).await.unwrap(), (b"abc0123456789".to_vec(), true));
            assert_eq!(read(length, size).await.unwrap(), (b"hello".to_vec(), true));
            assert_eq!(read(close, size).await.unwrap(), (b"rest".to_vec(), false));
        }
    }

    #[tokio::test]
    async fn broken_bodies_are_errors() {
        let cut: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab";
        let long: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n";
        assert!(read(cut, 1000).await.is_err());
        assert!(read(long, 1000).await.is_err());
    }
}
