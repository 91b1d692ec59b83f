//! When a token leaves: on a stream's own clock, on one clock for all (a batch's steps), or at once.

use std::time::Duration;
use tokio::time::Instant;

pub struct Pacing {
    ttft: Duration,
    itl: Duration,
    /// The clock all streams step by, if they step together.
    epoch: Option<Instant>,
}

impl Pacing {
    /// `itl` zero is a burst; `together` puts all streams on one clock of `itl` steps.
    pub fn new(ttft: Duration, itl: Duration, together: bool) -> Pacing {
        let epoch = (together && !itl.is_zero()).then(Instant::now);
        Pacing { ttft, itl, epoch }
    }

    /// When the first token of a request that came at `arrival` leaves; None: at once.
    pub fn first(&self, arrival: Instant) -> Option<Instant> {
        let due = arrival + self.ttft;
        match self.epoch {
            Some(epoch) => Some(next_step(epoch, self.itl, due)),
            None if self.ttft.is_zero() => None,
            None => Some(due),
        }
    }

    /// When token `index` (0 is the first, which left at `first`) leaves; None: at once.
    pub fn nth(&self, first: Instant, index: u32) -> Option<Instant> {
        (!self.itl.is_zero()).then(|| first + self.itl * index)
    }
}

/// The first step of the clock at or after `due`.
fn next_step(epoch: Instant, step: Duration, due: Instant) -> Instant {
    let since = due.saturating_duration_since(epoch);
    let steps = since.as_nanos().div_ceil(step.as_nanos());
    epoch + step * u32::try_from(steps).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn own_clock_and_burst() {
        let now = Instant::now();
        let paced = Pacing::new(130 * MS, 20 * MS, false);
        assert_eq!(paced.first(now), Some(now + 130 * MS));
        assert_eq!(paced.nth(now, 3), Some(now + 60 * MS));
        let burst = Pacing::new(Duration::ZERO, Duration::ZERO, true);
        assert_eq!((burst.first(now), burst.nth(now, 3)), (None, None));
    }

    #[test]
    fn together_rounds_up_to_the_step() {
        let epoch = Instant::now();
        assert_eq!(next_step(epoch, 20 * MS, epoch + 41 * MS), epoch + 60 * MS);
        assert_eq!(next_step(epoch, 20 * MS, epoch + 40 * MS), epoch + 40 * MS);
    }
}
