//! The native transport: gRPC calls to the workers in one thread of ours, which feeds each message straight into
//! its answer's stream.
//!
//! - [`connection`]: the connections to a worker; [`io`]: their sockets, [`tls`] and [`trust`]: encrypted ones
//! - [`call`]: one call; [`frames`], [`status`] and [`patience`] are its parts
//! - [`answer`]: the stream that a call feeds and Python takes from; [`socket`]: the client's, if it was lent
//! - [`events`]: what Python is told
//!
//! Locks are taken in this order: a worker's, an answer's, a mailbox's, the list of events.

pub mod answer;
pub mod call;
pub mod connection;
pub mod events;
pub mod frames;
pub mod io;
pub mod patience;
pub mod socket;
pub mod status;
pub mod tls;
pub mod trust;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use http::uri::PathAndQuery;
use serde::Deserialize;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};

use crate::error::{Code, Error, Result};
use answer::Answer;
use call::{Deadline, Job, Outlet};
use connection::Worker;
use events::{Event, Events, Mailbox};
use tls::Tls;

const SERVICE: &str = "/sglang.grpc.scheduler.SglangScheduler/";
/// Threads that look up names; an attempt to connect waits for one.
const RESOLVERS: usize = 4;
/// How long the thread may take to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// What the transport needs to know. All may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    pub keepalive_time_ms: u64,
    pub keepalive_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    /// The longest message of a worker.
    pub message_bytes: usize,
    /// Messages of a call that may wait for their consumer.
    pub queue_size: usize,
    /// Calls on one connection.
    pub max_streams: usize,
    /// Needed for workers whose URL begins with `grpcs://`.
    pub tls: Option<tls::Options>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keepalive_time_ms: 300_000,
            keepalive_timeout_ms: 20_000,
            connect_timeout_ms: 5000,
            message_bytes: 256 << 20,
            queue_size: 2000,
            max_streams: 1000,
            tls: None,
        }
    }
}

impl Options {
    /// From one JSON object with the fields' names.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let mut options: Self = serde_json::from_slice(json)
            .map_err(|error| internal(format!("The options of the transport: {error}.")))?;
        options.queue_size = options.queue_size.max(1);
        options.max_streams = options.max_streams.max(1);
        Ok(options)
    }
}

/// What calls share.
pub struct Shared {
    options: Options,
    tls: Option<Arc<Tls>>,
    events: Events,
    workers: Mutex<HashMap<String, Arc<Worker>>>,
    starts: Starts,
}

/// Calls that are to be started. To wake the thread, and to write to a worker, costs as much for one as for many.
#[derive(Default)]
struct Starts {
    waiting: Mutex<Vec<Start>>,
    submitted: Notify,
}

struct Start {
    job: Job,
    outlet: Outlet,
    mailbox: Arc<Mailbox>,
}

impl Starts {
    fn waiting(&self) -> MutexGuard<'_, Vec<Start>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Starts what was submitted, for ever.
    async fn start(self: Arc<Self>) {
        loop {
            self.starts.submitted.notified().await;
            let waiting = std::mem::take(&mut *self.starts.waiting());
            for Start { job, outlet, mailbox } in waiting {
                if !mailbox.is_closed() {
                    let call = call::run(Arc::clone(&self), job, outlet, Arc::clone(&mailbox));
                    mailbox.runs_as(tokio::spawn(call).abort_handle());
                }
            }
        }
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<String, Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self, url: &str) -> Result<Arc<Worker>> {
        let mut workers = self.workers();
        if let Some(worker) = workers.get(url) {
            return Ok(Arc::clone(worker));
        }
        let worker = Worker::new(url, self.options.clone(), self.tls.as_ref());
        let worker =
            worker.map_err(|why| internal(format!("The worker {url:?} cannot be called: {why}.")))?;
        workers.insert(url.to_owned(), Arc::clone(&worker));
        Ok(worker)
    }
}

/// The transport of one process. Dropping it cancels all calls and ends its thread.
pub struct Net {
    shared: Arc<Shared>,
    #[cfg(test)]
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    /// Errors: `Load`, if the system refuses a thread or what it needs, or certificates cannot be used.
    pub fn new(mut options: Options) -> Result<Self> {
        let refused = |error: std::io::Error| {
            Error::new(Code::Load, format!("The native transport cannot start: {error}."))
        };
        let tls = options.tls.take().map(Tls::new).transpose()?.map(Arc::new);
        let events = Events::new().map_err(refused)?;
        let shared =
            Arc::new(Shared { options, tls, events, workers: Mutex::default(), starts: Starts::default() });
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(RESOLVERS).build();
        let runtime = runtime.map_err(refused)?;
        #[cfg(test)]
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = mpsc::channel();
        let life = live(runtime, Arc::clone(&shared), stopped, end);
        let thread = std::thread::Builder::new().name("wr-net".to_owned()).spawn(life).map_err(refused)?;
        Ok(Self {
            shared,
            #[cfg(test)]
            runtime: handle,
            stop: Some(stop),
            ended,
            thread: Some(thread),
        })
    }

    /// Readable when `fetch` has something to tell.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.events.fd()
    }

    /// Appends all that has happened since the last time.
    pub fn fetch(&self, out: &mut Vec<Event>) {
        self.shared.events.fetch(out);
    }

    /// Opens `Generate` at a worker's URL: `grpc://HOST:PORT`, or `grpcs://HOST:PORT` with TLS. With an answer,
    /// choice `choice` of it is fed. Limits of 0 are none. It starts with the next `submit`.
    pub fn generate(
        &self,
        url: &str,
        request: &[u8],
        answer: Option<(Arc<Answer>, u32)>,
        tag: u64,
        first: Duration,
        between: Duration,
    ) -> Result<Call> {
        self.call(url, "Generate", request, answer, tag, Deadline::Silence { first, between })
    }

    /// Calls a method by its short name. A limit of 0 is none.
    pub fn unary(&self, url: &str, method: &str, request: &[u8], tag: u64, limit: Duration) -> Result<Call> {
        let call = self.call(url, method, request, None, tag, Deadline::Whole(limit))?;
        self.submit();
        Ok(call)
    }

    /// Starts all calls that wait for it.
    pub fn submit(&self) {
        self.shared.starts.submitted.notify_one();
    }

    /// Drops the connections to a worker; its calls end with UNAVAILABLE.
    pub fn forget(&self, url: &str) {
        let worker = self.shared.workers().remove(url);
        if let Some(worker) = worker {
            worker.forget();
        }
    }

    /// Milliseconds since anything of a call came from a worker, −1 if nothing ever did.
    pub fn heard(&self, url: &str) -> i64 {
        self.shared.workers().get(url).map_or(-1, |worker| worker.heard())
    }

    fn call(
        &self,
        url: &str,
        method: &str,
        request: &[u8],
        answer: Option<(Arc<Answer>, u32)>,
        tag: u64,
        deadline: Deadline,
    ) -> Result<Call> {
        let path = PathAndQuery::try_from(format!("{SERVICE}{method}"))
            .map_err(|_| internal(format!("{method:?} is no name of a method.")))?;
        if u32::try_from(request.len()).is_err() {
            return Err(internal("The request to the worker has 4 GiB or more.".to_owned()));
        }
        let worker = self.shared.worker(url)?;
        let job = Job { worker, path, request: frames::framed(request), deadline };
        let mailbox = Mailbox::new(tag);
        let fed = answer.as_ref().map(|(answer, _)| Arc::clone(answer));
        let outlet = answer.map_or(Outlet::Mail, |(answer, choice)| Outlet::Stream { answer, choice });
        self.shared.starts.waiting().push(Start { job, outlet, mailbox: Arc::clone(&mailbox) });
        Ok(Call { mailbox, answer: fed })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that does not end is left alone.
        if self.ended.recv_timeout(FAREWELL) != Err(mpsc::RecvTimeoutError::Timeout)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// The thread's life. `end` is dropped with it.
fn live(
    runtime: Runtime,
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
    end: mpsc::Sender<()>,
) -> impl FnOnce() + Send {
    move || {
        runtime.spawn(Arc::clone(&shared).start());
        runtime.spawn(async move { shared.events.tell().await });
        let _ = runtime.block_on(stopped);
        // A name that is being looked up is not waited for.
        runtime.shutdown_background();
        drop(end);
    }
}

/// A running call. Dropping it cancels it.
pub struct Call {
    mailbox: Arc<Mailbox>,
    answer: Option<Arc<Answer>>,
}

impl Call {
    /// When this returns, nothing of the call is fed any more, and no event of it follows.
    pub fn cancel(&self) {
        // Nothing is being fed while we hold the answer.
        let answer = self.answer.as_ref().map(|answer| answer.lock());
        self.mailbox.close();
        drop(answer);
        self.mailbox.abort();
    }

    /// Nothing of the worker's is delivered before the message that `give` brings. Before the call starts.
    pub fn hold(&self) {
        self.mailbox.hold();
    }

    /// Delivers a message before the worker's first one, which `hold` holds.
    pub fn give(&self, message: &[u8]) {
        self.mailbox.give(message.to_vec().into());
    }

    /// Cancels it, unless a message of it was fed: then it goes on, and this is false.
    pub fn withdraw(&self) -> bool {
        let answer = self.answer.as_ref().map(|answer| answer.lock());
        let withdrawn = self.mailbox.close_unfed();
        drop(answer);
        if withdrawn {
            self.mailbox.abort();
        }
        withdrawn
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn internal(message: String) -> Error {
    Error::new(Code::Internal, message)
}
