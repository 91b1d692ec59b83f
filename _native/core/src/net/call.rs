//! One gRPC call, from its request to its status.
//!
//! Messages come in bursts: all that is there is fed before anything is written or told, up to a bound.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Version};

use super::Shared;
use super::answer::{Answer, Inner};
use super::connection::{Lease, Worker};
use super::events::Mailbox;
use super::frames::Frames;
use super::patience::{Patience, Silence};
use super::status::{DEADLINE_EXCEEDED, INTERNAL, OK, Status, UNAVAILABLE};
use crate::stream::{ALL_DONE, CANCEL, CHOICE_DONE, FAILED, OUTPUT, first_failure};

/// A burst ends, so that other calls get their turn, after so many bytes or messages.
const BURST_BYTES: usize = 64 << 10;
const BURST_MESSAGES: usize = 64;
/// Connections that a call is tried on, where they turn out not to take it.
const TRIES: usize = 3;

/// Flags that are told at once.
const TURNS: u32 = CHOICE_DONE | CANCEL | ALL_DONE | FAILED;

/// What is asked of a worker.
pub struct Job {
    pub worker: Arc<Worker>,
    pub path: PathAndQuery,
    /// Framed.
    pub request: Bytes,
    pub deadline: Deadline,
}

/// How long a call may take.
#[derive(Clone, Copy)]
pub enum Deadline {
    /// From its beginning to its end; the worker is told.
    Whole(Duration),
    /// Until the first message, then between messages.
    Silence { first: Duration, between: Duration },
}

/// Where messages go.
pub enum Outlet {
    Mail,
    Stream { answer: Arc<Answer>, choice: u32 },
}

/// Runs a call and tells its end.
pub async fn run(net: Arc<Shared>, job: Job, outlet: Outlet, mailbox: Arc<Mailbox>) {
    let mut ending = Ending::new(net, mailbox);
    ending.status = converse(&ending.net, job, outlet, &ending.mailbox).await.unwrap_or_else(|status| status);
}

/// Tells the end of a call when it is dropped, so that a panic is an end too.
struct Ending {
    net: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    status: Status,
}

impl Ending {
    fn new(net: Arc<Shared>, mailbox: Arc<Mailbox>) -> Self {
        Self { net, mailbox, status: Status::new(INTERNAL, "the call failed in the native core") }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let status = self.status.clone();
        self.net.events.post(&self.mailbox, true, |mail| mail.ended = Some(status));
    }
}

/// Ok and Err are both how it ended; Err is what we found out for ourselves.
async fn converse(net: &Shared, job: Job, outlet: Outlet, mailbox: &Arc<Mailbox>) -> Result<Status, Status> {
    let deadline = job.deadline;
    let (Deadline::Whole(limit) | Deadline::Silence { first: limit, .. }) = deadline;
    let mut patience = Patience::new(limit);
    let opened = patience.within(open(&job)).await;
    let (lease, response) = opened.map_err(|Silence| expired(deadline, limit))??;
    // The prompt need not be kept for as long as the answer takes; no more need the headers.
    let worker = Arc::clone(&job.worker);
    drop(job);
    let broken = |error: &h2::Error| Status::of_h2(error, &worker.address, lease.link.dropped());
    let answered = patience.within(response).await.map_err(|Silence| expired(deadline, limit))?;
    worker.hear(Instant::now());
    let mut body = {
        let (head, body) = answered.map_err(|error| broken(&error))?.into_parts();
        if let Some(status) = Status::told(&head.headers) {
            return Ok(status);
        }
        if let Some(status) = Status::of_headers(head.status, &head.headers) {
            return Err(status);
        }
        body
    };
    let frames = Frames::new(net.options.message_bytes);
    let mut reader = Reader {
        net,
        worker: &worker,
        mailbox,
        outlet,
        deadline,
        patience,
        frames,
        batch: Vec::new(),
        end: None,
        begun: false,
        failed: false,
        untold: 0,
    };
    reader.read(&mut body, &broken).await?;
    let trailers = reader.trailers(&mut body).await?.map_err(|error| broken(&error))?;
    let status =
        trailers.as_ref().and_then(Status::told).unwrap_or_else(|| Status::missing(trailers.as_ref()));
    if status.code == OK && !reader.frames.is_empty() {
        return Err(Status::new(INTERNAL, "the worker ended the call within a message"));
    }
    Ok(status)
}

/// Sends the request, on another connection if the first does not take it.
async fn open(job: &Job) -> Result<(Lease, h2::client::ResponseFuture), Status> {
    let mut last = None;
    for _ in 0..TRIES {
        let lease = job.worker.lease().await?;
        let sent = lease.link.sender().send_request(head(job), false);
        match sent
            .and_then(|(response, mut body)| body.send_data(job.request.clone(), true).map(|()| response))
        {
            Ok(response) => return Ok((lease, response)),
            Err(error) => {
                // Nothing of the call was sent.
                lease.link.close();
                last = Some(Status::of_h2(&error, &job.worker.address, lease.link.dropped()));
            }
        }
    }
    Err(last.unwrap_or_else(|| Status::new(UNAVAILABLE, "no connection took the call")))
}

fn head(job: &Job) -> Request<()> {
    const AGENT: &str = concat!("wsgi-router/", env!("CARGO_PKG_VERSION"));
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(job.worker.scheme.clone());
    uri.authority = Some(job.worker.authority.clone());
    uri.path_and_query = Some(job.path.clone());
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    // All three parts are there.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(http::header::USER_AGENT, HeaderValue::from_static(AGENT));
    if let Deadline::Whole(limit) = job.deadline
        && !limit.is_zero()
    {
        headers.insert("grpc-timeout", timeout(limit));
    }
    request
}

/// At most 8 digits and a unit.
fn timeout(limit: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match limit.as_millis() {
        millis @ 0..=MOST => format!("{millis}m"),
        millis => format!("{}S", (millis / 1000).min(MOST)),
    };
    HeaderValue::try_from(text).expect("digits and a letter are a header's value")
}

fn expired(deadline: Deadline, limit: Duration) -> Status {
    match deadline {
        Deadline::Whole(_) => Status::new(DEADLINE_EXCEEDED, "Deadline Exceeded"),
        Deadline::Silence { .. } => {
            let words = format!("nothing came for {} seconds", limit.as_secs_f64());
            Status { silent: true, ..Status::new(DEADLINE_EXCEEDED, words) }
        }
    }
}

/// What the end of a burst means.
enum Turn {
    /// There is more.
    More,
    /// Nothing is there; the task is woken when that changes.
    Wait,
    /// No messages any more.
    End,
    Failed(Status),
}

/// What comes after the messages of a burst were delivered.
enum Next {
    Read,
    /// The consumer has enough for now.
    Park,
}

/// Reads the messages of one call.
struct Reader<'a> {
    net: &'a Shared,
    worker: &'a Worker,
    mailbox: &'a Arc<Mailbox>,
    outlet: Outlet,
    deadline: Deadline,
    patience: Patience,
    frames: Frames,
    /// Messages of this burst.
    batch: Vec<Bytes>,
    /// How they end, if that was seen and the burst is held.
    end: Option<Turn>,
    /// A message came.
    begun: bool,
    /// The stream has failed: it takes no more.
    failed: bool,
    /// Messages fed that no event has told of.
    untold: u32,
}

impl Reader<'_> {
    /// Delivers messages until there are no more.
    async fn read(
        &mut self,
        body: &mut RecvStream,
        broken: &impl Fn(&h2::Error) -> Status,
    ) -> Result<(), Status> {
        loop {
            match poll_fn(|context| self.poll_bursts(context, body, broken)).await {
                Ok(Pause::Cede) => cede().await,
                Ok(Pause::Park) => self.park().await,
                Ok(Pause::Hold) => {
                    let lead = self.mailbox.lead().await;
                    self.batch.insert(0, lead);
                }
                Ok(Pause::End) => return Ok(()),
                Err(status) => return Err(status),
            }
        }
    }

    async fn trailers(
        &mut self,
        body: &mut RecvStream,
    ) -> Result<Result<Option<HeaderMap>, h2::Error>, Status> {
        let limit = self.patience.limit();
        self.patience.within(body.trailers()).await.map_err(|Silence| expired(self.deadline, limit))
    }

    /// Waits for room. The worker is not silent meanwhile.
    async fn park(&mut self) {
        let limit = self.net.options.queue_size;
        match &self.outlet {
            Outlet::Mail => self.mailbox.room(limit).await,
            Outlet::Stream { answer, .. } => answer.room(limit).await,
        }
        self.alive(Instant::now());
    }

    /// The worker gave a sign of life; the deadline of a whole call does not care.
    fn alive(&mut self, now: Instant) {
        if let Deadline::Silence { between, .. } = self.deadline {
            self.patience.renew(now);
            if !std::mem::replace(&mut self.begun, true) {
                self.patience.allow(between);
            }
        }
    }

    /// Gathers and delivers what is there.
    fn poll_bursts(
        &mut self,
        context: &mut Context,
        body: &mut RecvStream,
        broken: &impl Fn(&h2::Error) -> Status,
    ) -> Poll<Result<Pause, Status>> {
        let turn = self.end.take().unwrap_or_else(|| self.gather(context, body, broken));
        if self.is_held() {
            self.worker.hear(Instant::now());
            self.end = Some(turn).filter(|turn| matches!(turn, Turn::End | Turn::Failed(_)));
            return Poll::Ready(Ok(Pause::Hold));
        }
        let next = if self.batch.is_empty() { Next::Read } else { self.deliver()? };
        match (turn, next) {
            (Turn::Failed(status), _) => Poll::Ready(Err(status)),
            (Turn::End, _) => Poll::Ready(Ok(Pause::End)),
            (_, Next::Park) => Poll::Ready(Ok(Pause::Park)),
            (Turn::More, Next::Read) => Poll::Ready(Ok(Pause::Cede)),
            (Turn::Wait, Next::Read) => {
                let limit = self.patience.limit();
                self.patience.poll(context).map(|()| Err(expired(self.deadline, limit)))
            }
        }
    }

    /// Is there a first message, and something to come before it? A failure goes ahead.
    fn is_held(&self) -> bool {
        let first = self.batch.first().filter(|_| !self.begun && self.mailbox.is_held());
        first.is_some_and(|message| first_failure(message).is_none())
    }

    /// Fills `batch` with whole messages.
    fn gather(
        &mut self,
        context: &mut Context,
        body: &mut RecvStream,
        broken: &impl Fn(&h2::Error) -> Status,
    ) -> Turn {
        let mut bytes = 0;
        let turn = loop {
            match self.frames.cut() {
                Err(status) => break Turn::Failed(status),
                Ok(Some(message)) => {
                    self.batch.push(message);
                    if self.batch.len() == BURST_MESSAGES {
                        break Turn::More;
                    }
                    continue;
                }
                Ok(None) if bytes >= BURST_BYTES => break Turn::More,
                Ok(None) => {}
            }
            match body.poll_data(context) {
                Poll::Pending => break Turn::Wait,
                Poll::Ready(None) => break Turn::End,
                Poll::Ready(Some(Err(error))) => break Turn::Failed(broken(&error)),
                Poll::Ready(Some(Ok(data))) => {
                    bytes += data.len();
                    self.frames.push(data);
                }
            }
        };
        if bytes > 0 {
            // It fails only for more than was received.
            let _ = body.flow_control().release_capacity(bytes);
        }
        turn
    }

    /// Gives the burst to its consumer. Errors: the stream's own.
    fn deliver(&mut self) -> Result<Next, Status> {
        let now = Instant::now();
        self.worker.hear(now);
        let first = !self.begun;
        self.alive(now);
        if first && matches!(self.outlet, Outlet::Stream { .. }) && first_failure(&self.batch[0]).is_some() {
            self.outlet = Outlet::Mail;
        }
        match &self.outlet {
            Outlet::Mail => Ok(self.mail()),
            Outlet::Stream { .. } => self.feed(first),
        }
    }

    fn mail(&mut self) -> Next {
        let mut lying = 0;
        self.net.events.post(self.mailbox, true, |mail| {
            mail.messages.append(&mut self.batch);
            lying = mail.messages.len();
        });
        self.batch.clear();
        if lying >= self.net.options.queue_size { Next::Park } else { Next::Read }
    }

    fn feed(&mut self, first: bool) -> Result<Next, Status> {
        let Outlet::Stream { answer, choice } = &self.outlet else { return Ok(Next::Read) };
        let messages = self.batch.len();
        let mut inner = answer.lock();
        if self.failed || !self.mailbox.feed() {
            self.batch.clear();
            return Ok(Next::Read);
        }
        inner.equip();
        let told = feed_all(&mut inner, *choice, &mut self.batch)?;
        let stop = inner.flush();
        inner.count(messages);
        let lent = inner.is_lent();
        let full = inner.is_full(self.net.options.queue_size);
        drop(inner);
        self.failed = told.failed.is_some();
        self.untold += messages as u32;
        let urgent = first || told.flags & TURNS != 0 || stop.is_some();
        if urgent || !lent && told.flags & OUTPUT != 0 {
            let messages = std::mem::take(&mut self.untold);
            self.net.events.post(self.mailbox, urgent, |mail| {
                mail.feed(messages, told.flags);
                mail.failed = mail.failed.take().or(told.failed);
                mail.blocked = mail.blocked.or(stop);
            });
        }
        Ok(if full { Next::Park } else { Next::Read })
    }
}

/// What came of a burst.
struct Told {
    flags: u32,
    /// The message that the stream failed on.
    failed: Option<Bytes>,
}

/// Feeds a burst, up to a failure.
fn feed_all(inner: &mut Inner, choice: u32, batch: &mut Vec<Bytes>) -> Result<Told, Status> {
    let mut flags = 0;
    for message in batch.drain(..) {
        flags |= inner.feed(choice, &message).map_err(|error| Status::new(INTERNAL, error.message))?;
        if flags & FAILED != 0 {
            return Ok(Told { flags, failed: Some(message) });
        }
    }
    Ok(Told { flags, failed: None })
}

/// Why reading pauses.
enum Pause {
    Cede,
    Park,
    /// What goes before the first message is not here yet.
    Hold,
    End,
}

/// Lets the other tasks have their turn, without a look at the sockets.
async fn cede() {
    let mut ceded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut ceded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::events::What;
    use crate::net::{Net, Options};

    #[test]
    fn a_call_that_panics_has_an_end() {
        let net = Net::new(Options::default()).unwrap();
        let ending = Ending::new(Arc::clone(&net.shared), Mailbox::new(3));
        let task = net.runtime.spawn(async move {
            let _ending = ending;
            panic!("boom");
        });
        assert!(net.runtime.block_on(task).unwrap_err().is_panic());
        let mut told = Vec::new();
        net.fetch(&mut told);
        assert!(matches!(&told[0].what, What::Ended(status) if status.code == INTERNAL), "{told:?}");
    }

    #[test]
    fn a_timeout_has_at_most_eight_digits() {
        let text = |millis| timeout(Duration::from_millis(millis)).to_str().unwrap().to_owned();
        assert_eq!(text(1), "1m");
        assert_eq!(text(99_999_999), "99999999m");
        assert_eq!(text(100_000_000), "100000S");
        assert_eq!(text(u64::MAX), "99999999S");
    }
}
