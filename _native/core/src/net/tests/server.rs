//! A worker that does what its script says.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::soon;

/// What the worker does with a call, one after the other.
#[derive(Clone)]
pub enum Step {
    /// Headers that are not the usual ones: status and fields.
    Head(u16, Vec<(&'static str, &'static str)>),
    /// Headers that are trailers too.
    Only(Vec<(&'static str, &'static str)>),
    /// One DATA frame, once the windows allow it.
    Data(Bytes),
    Trailers(Vec<(&'static str, &'static str)>),
    /// The end of the stream, without trailers.
    End,
    Pause(Duration),
    Reset(Reason),
    /// Waits for the client's reset.
    Hold,
    /// Reads the request to its end.
    Request,
    /// Does something to the connection.
    Order(Order),
}

#[derive(Clone, Copy, Debug)]
pub enum Order {
    GoAway,
    /// Ends the connection without a word.
    Close,
    /// Answers nothing any more.
    Freeze,
}

/// What the worker has seen.
#[derive(Default)]
pub struct Seen {
    pub connections: usize,
    /// Calls that have begun, with their request's fields.
    pub calls: Vec<Request<()>>,
    /// Sizes of requests that were read to their end.
    pub requests: Vec<usize>,
    /// Bytes of DATA that the windows let through, for each call in order.
    pub sent: HashMap<usize, usize>,
    pub resets: Vec<Reason>,
}

type Script = dyn Fn(usize) -> Vec<Step> + Send + Sync;

pub struct Server {
    pub address: String,
    pub seen: Arc<Mutex<Seen>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// `script` tells what to do with the n-th call.
    pub fn new(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::with(Builder::new(), script)
    }

    pub fn with(builder: Builder, script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), builder, script)
    }

    pub fn at(
        address: SocketAddr,
        builder: Builder,
        script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, builder, Arc::new(script), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.spawn(serving);
            let _ = runtime.block_on(stopped);
        });
        Self { address, seen, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until what was seen is as it should be.
    pub fn wait(&self, right: impl Fn(&Seen) -> bool) {
        soon(|| right(&self.seen.lock().unwrap()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn serve(listener: TcpListener, builder: Builder, script: Arc<Script>, seen: Arc<Mutex<Seen>>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        seen.lock().unwrap().connections += 1;
        let (builder, script, seen) = (builder.clone(), Arc::clone(&script), Arc::clone(&seen));
        tokio::spawn(async move {
            if let Ok(connection) = builder.handshake(socket).await {
                attend(connection, script, seen).await;
            }
        });
    }
}

async fn attend(mut connection: Connection<TcpStream, Bytes>, script: Arc<Script>, seen: Arc<Mutex<Seen>>) {
    let (orders, mut ordered) = mpsc::unbounded_channel();
    loop {
        let next = poll_fn(|context| {
            while let Poll::Ready(Some(order)) = ordered.poll_recv(context) {
                match order {
                    Order::GoAway => connection.graceful_shutdown(),
                    order => return Poll::Ready(Err(order)),
                }
            }
            connection.poll_accept(context).map(Ok)
        });
        match next.await {
            Ok(Some(Ok((request, respond)))) => {
                let (head, body) = request.into_parts();
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.calls.push(Request::from_parts(head, ()));
                    seen.calls.len() - 1
                };
                let (steps, seen) = (script(number), Arc::clone(&seen));
                let call = Call { number, body, respond, stream: None, seen, orders: orders.clone() };
                tokio::spawn(call.run(steps));
            }
            Ok(_) | Err(Order::Close) => return,
            Err(_) => std::future::pending::<()>().await,
        }
    }
}

struct Call {
    number: usize,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    seen: Arc<Mutex<Seen>>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Call {
    async fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            if let Err(error) = self.step(step).await {
                self.seen.lock().unwrap().resets.extend(error.reason());
                return;
            }
        }
    }

    async fn step(&mut self, step: Step) -> Result<(), h2::Error> {
        match step {
            Step::Head(status, fields) => {
                let head = response(status, &fields);
                self.stream = Some(self.respond.send_response(head, false)?);
            }
            Step::Only(fields) => {
                self.respond.send_response(response(200, &fields), true)?;
            }
            Step::Data(data) => self.send(data).await?,
            Step::Trailers(fields) => self.stream()?.send_trailers(headers(&fields))?,
            Step::End => self.stream()?.send_data(Bytes::new(), true)?,
            Step::Pause(pause) => tokio::time::sleep(pause).await,
            Step::Reset(reason) => self.respond.send_reset(reason),
            Step::Hold => {
                let stream = self.stream()?;
                let reason = poll_fn(|context| stream.poll_reset(context)).await?;
                self.seen.lock().unwrap().resets.push(reason);
            }
            Step::Request => self.request().await?,
            Step::Order(order) => {
                let _ = self.orders.send(order);
                // Seen before the script goes on.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    fn stream(&mut self) -> Result<&mut SendStream<Bytes>, h2::Error> {
        if self.stream.is_none() {
            let head = response(200, &[("content-type", "application/grpc")]);
            self.stream = Some(self.respond.send_response(head, false)?);
        }
        Ok(self.stream.as_mut().unwrap())
    }

    async fn send(&mut self, mut data: Bytes) -> Result<(), h2::Error> {
        let (number, seen) = (self.number, Arc::clone(&self.seen));
        let stream = self.stream()?;
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let Some(room) = poll_fn(|context| stream.poll_capacity(context)).await.transpose()? else {
                let reason = poll_fn(|context| stream.poll_reset(context)).await?;
                return Err(reason.into());
            };
            let piece = data.split_to(room.min(data.len()));
            *seen.lock().unwrap().sent.entry(number).or_default() += piece.len();
            stream.send_data(piece, false)?;
        }
        Ok(())
    }

    async fn request(&mut self) -> Result<(), h2::Error> {
        let mut size = 0;
        while let Some(data) = self.body.data().await.transpose()? {
            size += data.len();
            self.body.flow_control().release_capacity(data.len())?;
        }
        self.seen.lock().unwrap().requests.push(size);
        Ok(())
    }
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn response(status: u16, fields: &[(&'static str, &'static str)]) -> Response<()> {
    let mut response = Response::builder().status(status).body(()).unwrap();
    *response.headers_mut() = headers(fields);
    response
}
