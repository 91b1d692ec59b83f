//! The listener and its HTTP/2 connections.

use super::rpc;
use super::state::State;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

const STREAMS_A_CONNECTION: u32 = 20_000;
const WINDOW: u32 = 1 << 20;

/// Accepts connections until a signal or until `limit` has passed.
pub async fn serve(state: Arc<State>, port: u16, limit: Duration) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(text)?;
    println!("worker ready on grpc://{}", listener.local_addr().map_err(text)?);
    let end = ended(limit)?;
    tokio::pin!(end);
    loop {
        tokio::select! {
            _ = &mut end => return Ok(()),
            accepted = listener.accept() => {
                let (socket, _) = accepted.map_err(text)?;
                tokio::spawn(connection(state.clone(), socket));
            }
        }
    }
}

/// A future that ends with SIGTERM, SIGINT or the time limit; the handlers are in place when this returns.
fn ended(limit: Duration) -> Result<impl Future<Output = ()>, String> {
    let handler = |kind| signal(kind).map_err(|error| error.to_string());
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = tokio::time::sleep(limit) => {}
        }
    })
}

async fn connection(state: Arc<State>, socket: TcpStream) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS_A_CONNECTION)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(8 * WINDOW)
        .handshake(socket);
    let Ok(mut connection) = handshake.await else {
        return;
    };
    // An error here is the peer's leaving: its streams see it on their next send.
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(rpc::answer(state.clone(), request, respond));
    }
}
