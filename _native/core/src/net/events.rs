//! What the transport's thread tells Python: a mailbox for each call, a list of those with mail, an eventfd.
//!
//! What was fed is told in batches: the eventfd is written once all calls that can go on have done so. What
//! somebody waits for (a first message, an end) is told at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::socket::Stop;
use super::status::Status;

/// Something that happened to a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub tag: u64,
    pub what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub enum What {
    /// `messages` were fed and led to `flags`; `failed`: the message that the stream failed on.
    Fed { messages: u32, flags: u32, failed: Option<Bytes> },
    /// A message that was not fed.
    Message(Bytes),
    /// The lent socket takes no more.
    Blocked(Stop),
    /// The last event.
    Ended(Status),
}

/// What a call has to tell since it was asked last.
#[derive(Default)]
pub struct Mail {
    pub fed: Option<(u32, u32)>,
    pub failed: Option<Bytes>,
    pub messages: Vec<Bytes>,
    pub blocked: Option<Stop>,
    pub ended: Option<Status>,
}

impl Mail {
    pub fn feed(&mut self, messages: u32, flags: u32) {
        let (before, earlier) = self.fed.unwrap_or_default();
        self.fed = Some((before + messages, earlier | flags));
    }

    /// In the order in which it happened.
    fn into_events(self, tag: u64, out: &mut Vec<Event>) {
        let Self { fed, failed, messages, blocked, ended } = self;
        let fed = fed.map(|(messages, flags)| What::Fed { messages, flags, failed });
        let messages = messages.into_iter().map(What::Message);
        let rest = blocked.map(What::Blocked).into_iter().chain(ended.map(What::Ended));
        out.extend(fed.into_iter().chain(messages).chain(rest).map(|what| Event { tag, what }));
    }
}

/// A call's mail.
pub struct Mailbox {
    tag: u64,
    state: Mutex<State>,
    /// Mail was fetched, or `give` was called.
    room: Notify,
}

/// A message that is not the worker's, and goes before its first one.
#[derive(Default)]
enum Lead {
    #[default]
    None,
    Awaited,
    Here(Bytes),
}

#[derive(Default)]
struct State {
    mail: Mail,
    /// It stands in the list of those with mail.
    listed: bool,
    closed: bool,
    /// A message of the call was fed.
    fed: bool,
    lead: Lead,
    /// The call, once it runs.
    task: Option<AbortHandle>,
}

impl Mailbox {
    pub fn new(tag: u64) -> Arc<Self> {
        Arc::new(Self { tag, state: Mutex::default(), room: Notify::new() })
    }

    /// No event follows from now on.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.mail = Mail::default();
    }

    /// `close`, unless something was fed: then it stays open, and this is false.
    pub fn close_unfed(&self) -> bool {
        let mut state = self.lock();
        if !state.fed {
            state.closed = true;
            state.mail = Mail::default();
        }
        !state.fed
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The call runs as `task`, which ends if nobody waits for it any more.
    pub fn runs_as(&self, task: AbortHandle) {
        let mut state = self.lock();
        if state.closed {
            task.abort();
        } else {
            state.task = Some(task);
        }
    }

    /// Ends the call, if it runs. To be called after the mailbox was closed.
    pub fn abort(&self) {
        let task = self.lock().task.take();
        if let Some(task) = task {
            task.abort();
        }
    }

    /// Something is about to be fed: false if the mailbox is closed, and nothing may be.
    pub fn feed(&self) -> bool {
        let mut state = self.lock();
        state.fed |= !state.closed;
        !state.closed
    }

    /// Nothing of the worker's may be delivered before what `give` brings.
    pub fn hold(&self) {
        self.lock().lead = Lead::Awaited;
    }

    /// Brings what `hold` waits for; only the first time.
    pub fn give(&self, message: Bytes) {
        let mut state = self.lock();
        if let Lead::Awaited = state.lead {
            state.lead = Lead::Here(message);
            drop(state);
            self.room.notify_waiters();
        }
    }

    /// Does anything go before the worker's first message?
    pub fn is_held(&self) -> bool {
        !matches!(self.lock().lead, Lead::None)
    }

    /// Waits for what `give` brings, and takes it.
    pub async fn lead(&self) -> Bytes {
        loop {
            let changed = self.room.notified();
            {
                let mut state = self.lock();
                match std::mem::take(&mut state.lead) {
                    Lead::Here(message) => return message,
                    other => state.lead = other,
                }
            }
            changed.await;
        }
    }

    /// Waits until fewer than `limit` messages lie here.
    pub async fn room(&self, limit: usize) {
        loop {
            let changed = self.room.notified();
            if self.lock().mail.messages.len() < limit {
                return;
            }
            changed.await;
        }
    }

    fn fetch(&self, out: &mut Vec<Event>) {
        let mail = {
            let mut state = self.lock();
            state.listed = false;
            std::mem::take(&mut state.mail)
        };
        if !mail.messages.is_empty() {
            self.room.notify_waiters();
        }
        mail.into_events(self.tag, out);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Mailboxes with mail, and how Python hears of them.
pub struct Events {
    ready: Mutex<Ready>,
    batched: Notify,
    fd: OwnedFd,
}

#[derive(Default)]
struct Ready {
    list: Vec<Arc<Mailbox>>,
    /// The eventfd was written since the list was fetched.
    signalled: bool,
}

impl Events {
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { ready: Mutex::default(), batched: Notify::new(), fd })
    }

    /// Readable when there is mail.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Puts something into a call's mailbox, unless that is closed. `urgent`: tell it at once.
    pub fn post(&self, mailbox: &Arc<Mailbox>, urgent: bool, put: impl FnOnce(&mut Mail)) {
        let listed = {
            let mut state = mailbox.lock();
            if state.closed {
                return;
            }
            put(&mut state.mail);
            std::mem::replace(&mut state.listed, true)
        };
        if listed && !urgent {
            return;
        }
        let mut ready = self.lock();
        let first = ready.list.is_empty();
        if !listed {
            ready.list.push(Arc::clone(mailbox));
        }
        if urgent {
            self.signal(&mut ready);
        } else if first {
            self.batched.notify_one();
        }
    }

    /// Tells what was batched, whenever its turn comes after the calls that have something to do.
    pub async fn tell(&self) {
        loop {
            self.batched.notified().await;
            self.signal(&mut self.lock());
        }
    }

    /// Makes the eventfd unreadable, appends all that has happened to `out`.
    pub fn fetch(&self, out: &mut Vec<Event>) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        let ready = std::mem::take(&mut *self.lock());
        for mailbox in ready.list {
            mailbox.fetch(out);
        }
    }

    fn signal(&self, ready: &mut Ready) {
        if !ready.signalled && !ready.list.is_empty() {
            ready.signalled = true;
            // It cannot fail: the counter is far from its end.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(events: &Events) -> bool {
        let mut polled = [rustix::event::PollFd::new(&events.fd, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&none)).unwrap() == 1
    }

    fn fetched(events: &Events) -> Vec<Event> {
        let mut out = Vec::new();
        events.fetch(&mut out);
        out
    }

    #[test]
    fn mail_is_summed_until_it_is_fetched_and_comes_in_order() {
        let events = Events::new().unwrap();
        let mailbox = Mailbox::new(7);
        events.post(&mailbox, false, |mail| mail.feed(2, 1));
        assert!(!readable(&events));
        events.post(&mailbox, true, |mail| mail.ended = Some(Status::new(0, "")));
        events.post(&mailbox, false, |mail| mail.feed(3, 4));
        assert!(readable(&events));
        let told: Vec<_> = fetched(&events).into_iter().map(|event| event.what).collect();
        let fed = What::Fed { messages: 5, flags: 5, failed: None };
        assert_eq!(told, [fed, What::Ended(Status::new(0, ""))]);
        assert!(!readable(&events));
        assert!(fetched(&events).is_empty());
        events.post(&mailbox, true, |mail| mail.messages.push(Bytes::new()));
        assert!(readable(&events));
    }

    #[test]
    fn nothing_comes_out_of_a_closed_mailbox() {
        let events = Events::new().unwrap();
        let mailbox = Mailbox::new(7);
        events.post(&mailbox, true, |mail| mail.feed(1, 1));
        mailbox.close();
        events.post(&mailbox, true, |mail| mail.feed(1, 1));
        assert!(fetched(&events).is_empty());
    }
}
