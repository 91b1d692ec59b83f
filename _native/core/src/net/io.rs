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
    Tls(Box<TlsStream<TcpStream>>),
}

/// HTTP/2 keeps only an error's words, so it gets those that are of use.
fn told<T>(outcome: io::Result<T>) -> io::Result<T> {
    outcome.map_err(tls::words)
}

/// A worker that refuses us may say so and leave; then it is a write that fails, for no reason of its own.
fn written<T>(
    stream: &mut TlsStream<TcpStream>,
    context: &mut Context,
    outcome: Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    let Poll::Ready(Err(error)) = outcome else { return outcome };
    let mut byte = [0];
    let error = match Pin::new(stream).poll_read(context, &mut ReadBuf::new(&mut byte)) {
        Poll::Ready(Err(reason)) => reason,
        _ => error,
    };
    Poll::Ready(told(Err(error)))
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context, out: &mut ReadBuf) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, out),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, out).map(told),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, data),
            Self::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_write(context, data);
                written(stream, context, done)
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
            Self::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_write_vectored(context, data);
                written(stream, context, done)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_flush(context);
                written(stream, context, done)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
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
