//! A worker's socket, plain or encrypted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::tls;

pub enum Io {
    Plain(TcpStream),
    Tls(Box<TlsIo>),
}

pub struct TlsIo {
    pub stream: TlsStream<TcpStream>,
    /// We have a certificate of our own.
    pub known: bool,
}

impl TlsIo {
    /// HTTP/2 keeps only an error's words, so it gets ours.
    fn told<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.map_err(|error| match tls::words(&error, self.known) {
            Some(words) => io::Error::new(error.kind(), words),
            None => error,
        })
    }

    /// A worker that refuses us says so and leaves; then a write fails for no reason of its own.
    fn last_words(&mut self, context: &mut Context, error: io::Error) -> io::Error {
        let mut byte = [0];
        match Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Err(reason)) if tls::words(&reason, self.known).is_some() => reason,
            _ => error,
        }
    }

    fn written<T>(&mut self, context: &mut Context, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        outcome.map(|outcome| match outcome {
            Ok(done) => Ok(done),
            Err(error) => {
                let error = self.last_words(context, error);
                self.told(Err(error))
            }
        })
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context, out: &mut ReadBuf) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, out),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_read(context, out).map(|read| tls.told(read)),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, data),
            Self::Tls(tls) => {
                let written = Pin::new(&mut tls.stream).poll_write(context, data);
                tls.written(context, written)
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context,
        data: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Self::Tls(tls) => {
                let written = Pin::new(&mut tls.stream).poll_write_vectored(context, data);
                tls.written(context, written)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(tls) => tls.stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(tls) => {
                let flushed = Pin::new(&mut tls.stream).poll_flush(context);
                tls.written(context, flushed)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(context),
        }
    }
}

/// All addresses of a name are tried, in order. The error of the last one.
pub async fn dial(address: &str) -> io::Result<TcpStream> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in found {
        match TcpStream::connect(address).await {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
