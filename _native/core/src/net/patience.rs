//! How long a worker may be silent. The timer is lazy: a message costs it nothing but a look at the clock.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Silence since the last sign of life, against a limit.
pub struct Patience {
    limit: Option<Duration>,
    last: Instant,
    /// May be due too early: it is armed anew when it fires, not when the worker speaks.
    timer: Pin<Box<Sleep>>,
    armed: bool,
}

impl Patience {
    /// From now on. A limit of 0 is none. Needs the runtime.
    pub fn new(limit: Duration) -> Self {
        let now = Instant::now();
        let mut patience = Self { limit: None, last: now, timer: Box::pin(sleep_until(now)), armed: false };
        patience.allow(limit);
        patience
    }

    /// Another limit, since the last sign of life.
    pub fn allow(&mut self, limit: Duration) {
        self.limit = Some(limit).filter(|limit| !limit.is_zero());
        self.armed = false;
    }

    pub fn limit(&self) -> Duration {
        self.limit.unwrap_or_default()
    }

    /// A sign of life.
    pub fn renew(&mut self, now: std::time::Instant) {
        self.last = now.into();
    }

    /// Ready once the limit has passed.
    pub fn poll(&mut self, context: &mut Context) -> Poll<()> {
        let Some(limit) = self.limit else { return Poll::Pending };
        if self.armed && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        loop {
            // A limit beyond what the clock can tell is none.
            let Some(due) = self.last.checked_add(limit) else { return Poll::Pending };
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
            self.armed = true;
            ready!(self.timer.as_mut().poll(context));
        }
    }

    /// What a future comes to. Err: the limit has passed before.
    pub async fn within<F: Future>(&mut self, future: F) -> Result<F::Output, Silence> {
        let mut future = pin!(future);
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll(context).map(|()| Err(Silence)),
        })
        .await
    }
}

/// The limit has passed.
#[derive(Debug, PartialEq, Eq)]
pub struct Silence;

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    const SHORT: Duration = Duration::from_millis(60);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn silence_ends_a_wait() {
        run(async {
            let mut patience = Patience::new(SHORT);
            assert_eq!(patience.within(std::future::pending::<()>()).await, Err(Silence));
            assert_eq!(patience.within(async { 1 }).await, Ok(1));
        });
    }

    #[test]
    fn signs_of_life_prolong_it() {
        run(async {
            let mut patience = Patience::new(LONG);
            let born = Instant::now();
            for _ in 0..4 {
                let nap = tokio::time::sleep(SHORT / 2);
                assert_eq!(patience.within(nap).await, Ok(()));
                patience.allow(SHORT * 10);
                patience.renew(std::time::Instant::now());
            }
            assert_eq!(patience.within(std::future::pending::<()>()).await, Err(Silence));
            assert!(born.elapsed() >= SHORT * 12);
        });
    }

    #[test]
    fn no_limit_is_none() {
        run(async {
            for limit in [Duration::ZERO, Duration::MAX] {
                assert_eq!(Patience::new(limit).within(tokio::time::sleep(SHORT)).await, Ok(()));
            }
        });
    }
}
