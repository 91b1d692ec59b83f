//! Percentiles of times.

use serde_json::{Value, json};

/// Times in microseconds, kept whole: a bench is bounded in tokens.
#[derive(Default)]
pub struct Times(Vec<u32>);

impl Times {
    pub fn add(&mut self, time: std::time::Duration) {
        self.0.push(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn merge(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// Mean, percentiles (nearest rank) and maximum in milliseconds; null where there are none.
    pub fn summary(&mut self) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        self.0.sort_unstable();
        let ms = |micros: f64| (micros / 10.0).round() / 100.0;
        let rank = |share: f64| {
            let index = (share * self.0.len() as f64).ceil() as usize;
            ms(f64::from(self.0[index.clamp(1, self.0.len()) - 1]))
        };
        let sum: f64 = self.0.iter().map(|&micros| f64::from(micros)).sum();
        json!({
            "count": self.0.len(),
            "mean": ms(sum / self.0.len() as f64),
            "p50": rank(0.5),
            "p90": rank(0.9),
            "p99": rank(0.99),
            "max": rank(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn nearest_rank() {
        let mut times = Times::default();
        assert!(times.summary().is_null());
        for ms in (1..=100).rev() {
            times.add(Duration::from_millis(ms));
        }
        let summary = times.summary();
        assert_eq!(summary["p50"], 50.0);
        assert_eq!(summary["p99"], 99.0);
        assert_eq!(summary["max"], 100.0);
        assert_eq!(summary["mean"], 50.5);
    }
}
