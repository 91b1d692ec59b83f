//! What one response adds to the metrics, once, at its end.

use std::time::{Duration, Instant};

use super::usage::Usage;

/// Upper bounds in seconds of the buckets of inter-token time; one more bucket takes the rest.
pub const ITL_BOUNDS: [f64; 22] = [
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
];

/// Inter-token times. Buckets are not cumulative; a Prometheus histogram adds them up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    pub buckets: [u64; ITL_BOUNDS.len() + 1],
    /// Seconds.
    pub sum: f64,
    pub count: u64,
}

impl Histogram {
    /// `tokens` tokens came together, `elapsed` after the ones before: each took its share.
    pub fn observe(&mut self, elapsed: Duration, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let seconds = elapsed.as_secs_f64();
        let each = seconds / tokens as f64;
        self.buckets[ITL_BOUNDS.partition_point(|&bound| bound < each)] += tokens;
        self.sum += seconds;
        self.count += tokens;
    }
}

/// Times the tokens of one choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace(Option<Instant>);

impl Pace {
    /// The first tokens start the clock: their time is the time to first token, which is measured elsewhere.
    pub fn tick(&mut self, now: Instant, tokens: u64, into: &mut Histogram) {
        if tokens > 0
            && let Some(before) = self.0.replace(now)
        {
            into.observe(now.saturating_duration_since(before), tokens);
        }
    }
}

/// Totals of one response, right at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub usage: Usage,
    pub itl: Histogram,
    /// Of the choices that ended, in the order they did.
    pub finish_reasons: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_one_message_share_its_time() {
        let mut itl = Histogram::default();
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.tick(start, 1, &mut itl);
        assert_eq!(itl.count, 0);
        pace.tick(start + Duration::from_millis(80), 4, &mut itl);
        pace.tick(start + Duration::from_millis(90), 0, &mut itl);
        pace.tick(start + Duration::from_secs(60), 1, &mut itl);
        let bucket = ITL_BOUNDS.iter().position(|&bound| bound == 0.02).unwrap();
        assert_eq!((itl.buckets[bucket], itl.buckets[ITL_BOUNDS.len()], itl.count), (4, 1, 5));
        assert!((itl.sum - 60.0).abs() < 1e-9);
    }
}
