//! The connections to one worker. There is one, and another where the first has all the calls it may have.
//!
//! Calls wait for a connection while an attempt is under way; for a short time after a failed one they fail at
//! once. A connection that is lost, or that the worker wants to be rid of, takes no new calls.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};
use http::uri::{Authority, Scheme};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Options;
use super::io::{Io, dial};
use super::status::{Status, UNAVAILABLE};
use super::tls::{Doubt, Tls};

/// How long a failed attempt stands for the next ones.
const FAILURE_HOLDS: Duration = Duration::from_millis(200);
/// Connections to one worker; beyond that, calls wait for others to end.
const MOST: usize = 64;
/// What a worker may send of one call before we have read it.
const STREAM_WINDOW: u32 = 256 << 10;
/// The largest there is: calls that are not read must not hold up others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const FRAME: u32 = 64 << 10;
const HEADERS: u32 = 64 << 10;
/// Calls that we have reset and whose late frames are still known as theirs.
const RESETS: usize = 1000;

/// One connection.
pub struct Link {
    sender: SendRequest<Bytes>,
    driver: Driver,
    /// Calls that hold it.
    calls: AtomicUsize,
    /// It was leased since the last look.
    used: AtomicBool,
    /// No new calls; shared with what drives it.
    closed: Arc<AtomicBool>,
    dropped: OnceLock<String>,
}

impl Link {
    pub fn sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    /// No new calls on it; running ones go on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Why we have dropped the connection; None if we have not.
    pub fn dropped(&self) -> Option<&str> {
        self.dropped.get().map(String::as_str)
    }

    fn drop_now(&self, why: &str) {
        self.close();
        let _ = self.dropped.set(why.to_owned());
        self.driver.0.abort();
    }

    /// Does the worker still take calls on it?
    fn is_open(&self) -> bool {
        // It is ready at once, or never will be.
        let mut context = Context::from_waker(Waker::noop());
        !self.closed.load(Ordering::Relaxed)
            && !matches!(self.sender().poll_ready(&mut context), Poll::Ready(Err(_)))
    }

    fn has_room(&self, most: usize) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        calls < most && calls < self.sender.current_max_send_streams()
    }
}

/// A call's place on a connection.
pub struct Lease {
    pub link: Arc<Link>,
    worker: Arc<Worker>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.link.calls.fetch_sub(1, Ordering::Relaxed);
        self.worker.changed.notify_waiters();
    }
}

/// A worker and the connections to it.
pub struct Worker {
    /// `host:port`.
    pub address: String,
    pub scheme: Scheme,
    /// What calls say whom they are for.
    pub authority: Authority,
    host: String,
    tls: Option<Arc<Tls>>,
    options: Options,
    state: Mutex<State>,
    changed: Notify,
    born: Instant,
    /// Milliseconds from `born` to the last sign of life; −1: none yet.
    heard: AtomicI64,
}

#[derive(Default)]
struct State {
    links: Vec<Arc<Link>>,
    connecting: bool,
    failure: Option<(Instant, String)>,
    forgotten: bool,
}

impl Worker {
    /// `grpc://HOST:PORT`, `grpcs://HOST:PORT`, or without a scheme. Errors: why it cannot be called.
    pub fn new(url: &str, options: Options, tls: Option<&Arc<Tls>>) -> Result<Arc<Self>, &'static str> {
        let (address, tls) = match url.strip_prefix("grpcs://") {
            Some(address) => (address, Some(Arc::clone(tls.ok_or("TLS was not set up")?))),
            None => (url.strip_prefix("grpc://").unwrap_or(url), None),
        };
        let no_address = "it is no HOST:PORT";
        let named: Authority = address.parse().map_err(|_| no_address)?;
        let host = named.host().to_owned();
        if named.port_u16().is_none() || host.is_empty() {
            return Err(no_address);
        }
        // Who is known by another name is called by it, as grpcio does.
        let renamed = tls.as_ref().filter(|tls| tls.renames()).and_then(|tls| tls.name(&host).parse().ok());
        Ok(Arc::new(Self {
            address: address.to_owned(),
            scheme: if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP },
            authority: renamed.unwrap_or(named),
            host,
            tls,
            options,
            state: Mutex::default(),
            changed: Notify::new(),
            born: Instant::now(),
            heard: AtomicI64::new(-1),
        }))
    }

    /// Something of a call came.
    pub fn hear(&self, now: Instant) {
        self.heard.store(now.duration_since(self.born).as_millis() as i64, Ordering::Relaxed);
    }

    /// Milliseconds since something of a call came, −1 if nothing ever did.
    pub fn heard(&self) -> i64 {
        match self.heard.load(Ordering::Relaxed) {
            -1 => -1,
            at => (self.born.elapsed().as_millis() as i64 - at).max(0),
        }
    }

    /// A place on a connection, which is made if need be. Errors: `UNAVAILABLE`.
    pub async fn lease(self: &Arc<Self>) -> Result<Lease, Status> {
        loop {
            // Made before the look, so that what happens in between wakes it.
            let changed = self.changed.notified();
            if let Some(lease) = self.try_lease()? {
                return Ok(lease);
            }
            changed.await;
        }
    }

    /// Drops all connections, for ever.
    pub fn forget(&self) {
        let mut state = self.lock();
        state.forgotten = true;
        for link in state.links.drain(..) {
            link.drop_now("the worker was removed");
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// None: wait for a change.
    fn try_lease(self: &Arc<Self>) -> Result<Option<Lease>, Status> {
        let mut state = self.lock();
        if state.forgotten {
            return Err(Status::new(UNAVAILABLE, format!("the worker {} was removed", self.address)));
        }
        state.links.retain(|link| link.is_open());
        if let Some(link) = state.links.iter().find(|link| link.has_room(self.options.max_streams)) {
            link.calls.fetch_add(1, Ordering::Relaxed);
            link.used.store(true, Ordering::Relaxed);
            return Ok(Some(Lease { link: Arc::clone(link), worker: Arc::clone(self) }));
        }
        if let Some((_, words)) = state.failure.as_ref().filter(|(at, _)| at.elapsed() < FAILURE_HOLDS) {
            return Err(Status::new(UNAVAILABLE, words));
        }
        if !state.connecting && state.links.len() < MOST {
            state.connecting = true;
            tokio::spawn(Arc::clone(self).connect());
        }
        Ok(None)
    }

    async fn connect(self: Arc<Self>) {
        let limit = Duration::from_millis(self.options.connect_timeout_ms);
        let attempt = timeout(limit, self.attempt()).await;
        let outcome = attempt.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())));
        let mut state = self.lock();
        state.connecting = false;
        match outcome {
            Ok(link) if state.forgotten => link.drop_now("the worker was removed"),
            Ok(link) => {
                state.failure = None;
                state.links.push(link);
            }
            Err(why) => {
                let words = format!("connect to {} failed: {why}", self.address);
                state.failure = Some((Instant::now(), words));
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// A connection whose worker has answered: its settings are known by then.
    async fn attempt(self: &Arc<Self>) -> Result<Arc<Link>, String> {
        let socket = dial(&self.address).await.map_err(|error| error.to_string())?;
        let (io, doubt) = match &self.tls {
            Some(tls) => tls.encrypt(socket, tls.name(&self.host)).await?,
            None => (Io::Plain(socket), Doubt::Plain),
        };
        let spoken = greet(io).await;
        let (sender, connection, pings) = spoken.map_err(|error| doubt.explain(error))?;
        let closed = Arc::new(AtomicBool::new(false));
        let driving = drive(connection, Arc::clone(&closed), Arc::downgrade(self));
        let link = Arc::new(Link {
            sender,
            driver: Driver(tokio::spawn(driving).abort_handle()),
            calls: AtomicUsize::new(0),
            used: AtomicBool::new(true),
            closed,
            dropped: OnceLock::new(),
        });
        tokio::spawn(watch(Arc::downgrade(&link), Arc::downgrade(self), pings, self.options.clone()));
        Ok(link)
    }

    /// Takes no new calls on a connection that nobody has used for a while, unless it is the only one.
    fn retire(&self, link: &Arc<Link>) {
        let mut state = self.lock();
        if state.links.len() > 1 && link.calls.load(Ordering::Relaxed) == 0 {
            link.close();
            state.links.retain(|other| !Arc::ptr_eq(other, link));
        }
    }

    /// Lets go of connections that have ended.
    fn sweep(&self) {
        self.lock().links.retain(|link| !link.closed.load(Ordering::Relaxed));
        self.changed.notify_waiters();
    }

    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.lock().links.len()
    }

    #[cfg(test)]
    pub fn takes_calls(&self) -> bool {
        self.lock().links.iter().any(|link| link.is_open())
    }

    #[cfg(test)]
    pub fn calls(&self) -> usize {
        self.lock().links.iter().map(|link| link.calls.load(Ordering::Relaxed)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What moves a connection's bytes; it ends with this, for there are no calls by then.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Spoken = (SendRequest<Bytes>, Connection<Io>, PingPong);

/// Begins HTTP/2 and waits for the worker's first answer. Errors: words.
async fn greet(io: Io) -> Result<Spoken, String> {
    let (sender, mut connection) = handshake(io).await.map_err(words)?;
    let mut pings = connection.ping_pong().ok_or("no pings")?;
    first_answer(&mut connection, &mut pings).await?;
    Ok((sender, connection, pings))
}

/// If there is none, the connection knows why.
async fn first_answer(connection: &mut Connection<Io>, pings: &mut PingPong) -> Result<(), String> {
    let mut answer = pin!(pings.ping(Ping::opaque()));
    poll_fn(|context| match answer.as_mut().poll(context) {
        Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
        outcome => match Pin::new(&mut *connection).poll(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(words(error))),
            Poll::Ready(Ok(())) => Poll::Ready(Err("the worker closed the connection".to_owned())),
            Poll::Pending => outcome.map(|outcome| outcome.map(drop).map_err(words)),
        },
    })
    .await
}

fn words(error: h2::Error) -> String {
    error.get_io().map_or_else(|| error.to_string(), ToString::to_string)
}

async fn handshake(io: Io) -> Result<(SendRequest<Bytes>, Connection<Io>), h2::Error> {
    h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_concurrent_reset_streams(RESETS)
        // Frames of calls that are no longer known count as our errors: in time, every connection would end by them.
        .max_local_error_reset_streams(None)
        // Windows bound what a worker may send; small frames of blocked calls must not end the connection.
        .data_frame_budget(usize::MAX / 2)
        .enable_push(false)
        .handshake(io)
        .await
}

/// Moves the bytes of a connection, until it ends.
async fn drive(connection: Connection<Io>, closed: Arc<AtomicBool>, worker: Weak<Worker>) {
    let _closing = Closing { closed, worker };
    // Its calls hear of the error too, each for itself.
    let _ = connection.await;
}

/// Takes no new calls on a connection that nothing drives any more, for whatever reason.
struct Closing {
    closed: Arc<AtomicBool>,
    worker: Weak<Worker>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.upgrade() {
            worker.sweep();
        }
    }
}

/// Keeps an eye on a connection: pings while calls run, retires what is not used.
async fn watch(link: Weak<Link>, worker: Weak<Worker>, mut pings: PingPong, options: Options) {
    let pause = Duration::from_millis(options.keepalive_time_ms.max(1));
    let limit = Duration::from_millis(options.keepalive_timeout_ms);
    loop {
        sleep(pause).await;
        let (Some(held), Some(owner)) = (link.upgrade(), worker.upgrade()) else { return };
        let calls = held.calls.load(Ordering::Relaxed);
        if !held.used.swap(calls > 0, Ordering::Relaxed) {
            owner.retire(&held);
        }
        drop((held, owner));
        if calls > 0 && !matches!(timeout(limit, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            let Some(held) = link.upgrade() else { return };
            held.drop_now(&format!("a keepalive ping was not answered within {} ms", limit.as_millis()));
            return;
        }
    }
}
