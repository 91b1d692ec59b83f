//! A run: who sends which request when, and what is added up.

use super::http::Connection;
use super::request::{Answer, Plan};
use crate::procfs::{self, Usage};
use crate::stats::Times;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const MEMORY_SAMPLE: Duration = Duration::from_millis(250);
/// Kinds of errors listed; the rest is counted only.
const ERROR_KINDS: usize = 10;

pub enum Loop {
    Closed { streams: u64, ramp: Duration },
    Open { rate: f64, concurrency: usize },
}

pub struct Run {
    pub plan: Plan,
    pub pattern: Loop,
    pub requests: u64,
    pub seed: u64,
    pub fresh: bool,
    pub pids: Vec<u32>,
    pub idle: Duration,
    pub request_limit: Duration,
    pub limit: Duration,
}

/// Shared by the tasks of a run.
struct Context {
    plan: Plan,
    request_limit: Duration,
    seed: u64,
    fresh: bool,
    next: AtomicU64,
    idle: Mutex<Vec<Connection>>,
}

/// What a task, or the whole run, has added up.
#[derive(Default)]
struct Totals {
    ok: u64,
    tokens: u64,
    content_events: u64,
    body_bytes: u64,
    ttft: Times,
    itl: Times,
    e2e: Times,
    errors: BTreeMap<String, u64>,
    /// Answers by the bytes of their text: more than one entry means that answers differed.
    text_bytes: BTreeMap<u64, u64>,
}

impl Totals {
    fn add(&mut self, result: Result<Answer, String>) {
        match result {
            Err(kind) => *self.errors.entry(kind).or_default() += 1,
            Ok(answer) => {
                self.ok += 1;
                self.tokens += answer.tokens;
                self.content_events += answer.content_events;
                self.body_bytes += answer.body_bytes;
                *self.text_bytes.entry(answer.text_bytes).or_default() += 1;
                self.ttft.merge(answer.ttft);
                self.itl.merge(answer.itl);
                self.e2e.merge(answer.e2e);
            }
        }
    }

    fn merge(&mut self, other: Totals) {
        self.ok += other.ok;
        self.tokens += other.tokens;
        self.content_events += other.content_events;
        self.body_bytes += other.body_bytes;
        self.ttft.merge(other.ttft);
        self.itl.merge(other.itl);
        self.e2e.merge(other.e2e);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        for (bytes, count) in other.text_bytes {
            *self.text_bytes.entry(bytes).or_default() += count;
        }
    }
}

impl Run {
    /// Sends all requests; the result object. Errors here are those of the run itself.
    pub async fn run(self) -> Result<Value, String> {
        let own = [std::process::id()];
        let idle = idle_share(&self.pids, self.idle).await?;
        let before = procfs::usage(&self.pids)?;
        let pss_before = procfs::pss_mib(&self.pids);
        let client_before = procfs::usage(&own)?;
        let peak = Arc::new(Mutex::new(before.rss_mib));
        let sampler = tokio::spawn(sample(self.pids.clone(), peak.clone()));
        let context = Arc::new(Context {
            plan: self.plan,
            request_limit: self.request_limit,
            seed: self.seed,
            fresh: self.fresh,
            next: AtomicU64::new(0),
            idle: Mutex::default(),
        });
        let start = Instant::now();
        let work = async {
            match self.pattern {
                Loop::Closed { streams, ramp } => closed(&context, streams, self.requests, ramp).await,
                Loop::Open { rate, concurrency } => open(&context, rate, concurrency, self.requests).await,
            }
        };
        let mut totals = tokio::time::timeout(self.limit, work)
            .await
            .map_err(|_| format!("the run took longer than {} s", self.limit.as_secs_f64()))??;
        let wall = start.elapsed().as_secs_f64();
        let after = procfs::usage(&self.pids)?;
        sampler.abort();
        let peak = peak.lock().unwrap_or_else(PoisonError::into_inner).max(after.rss_mib);
        let client_cpu = procfs::usage(&own)?.cpu_seconds - client_before.cpu_seconds;
        let mut result = answers(&mut totals, self.requests, wall);
        result["client_cpu_s"] = json!(round(client_cpu, 3));
        if !self.pids.is_empty() {
            cost(&mut result, &totals, &before, &after);
            if let Some(share) = idle {
                without_idle(&mut result, &totals, share, wall);
            }
            result["rss_mib"] = json!({
                "before": round(before.rss_mib, 1), "peak": round(peak, 1), "after": round(after.rss_mib, 1)
            });
            result["pss_mib"] = json!({
                "before": round(pss_before, 1), "after": round(procfs::pss_mib(&self.pids), 1)
            });
        }
        Ok(result)
    }
}

fn round(number: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (number * scale).round() / scale
}

fn answers(totals: &mut Totals, requests: u64, wall: f64) -> Value {
    let failed: u64 = totals.errors.values().sum();
    let kinds: BTreeMap<_, _> = totals.errors.iter().take(ERROR_KINDS).collect();
    let mut errors = json!({"count": failed, "kinds": kinds});
    if totals.text_bytes.len() > 1 {
        errors["count"] = json!(failed + 1);
        errors["texts"] =
            json!(format!("answers of one length have different texts: {:?}", totals.text_bytes));
    }
    json!({
        "requests": requests,
        "ok": totals.ok,
        "errors": errors,
        "wall_s": round(wall, 3),
        "tokens": totals.tokens,
        "content_events": totals.content_events,
        "text_bytes": totals.text_bytes.keys().next(),
        "body_bytes": totals.body_bytes,
        "tokens_per_s": round(totals.tokens as f64 / wall, 1),
        "requests_per_s": round(totals.ok as f64 / wall, 2),
        "ttft_ms": totals.ttft.summary(),
        "itl_ms": totals.itl.summary(),
        "e2e_ms": totals.e2e.summary(),
    })
}

fn cost(result: &mut Value, totals: &Totals, before: &Usage, after: &Usage) {
    let cpu = after.cpu_seconds - before.cpu_seconds;
    let per = |count: u64| if cpu > 0.0 { json!(round(count as f64 / cpu, 1)) } else { Value::Null };
    result["cpu_s"] = json!(round(cpu, 3));
    result["cpu_s_by_pid"] = after
        .by_root
        .iter()
        .map(|(pid, seconds)| (pid.to_string(), json!(round(seconds - before.by_root[pid], 3))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    result["processes"] = json!(after.processes);
    result["tokens_per_cpu_s"] = per(totals.tokens);
    result["events_per_cpu_s"] = per(totals.content_events);
    result["requests_per_cpu_s"] = per(totals.ok);
    if totals.tokens > 0 {
        result["cpu_us_per_token"] = json!(round(cpu * 1e6 / totals.tokens as f64, 2));
    }
}

/// CPU seconds a second of the process trees while nothing is asked of them; None where no time is given to it.
async fn idle_share(pids: &[u32], time: Duration) -> Result<Option<f64>, String> {
    if time.is_zero() || pids.is_empty() {
        return Ok(None);
    }
    let before = procfs::usage(pids)?.cpu_seconds;
    let start = Instant::now();
    tokio::time::sleep(time).await;
    let spent = procfs::usage(pids)?.cpu_seconds - before;
    Ok(Some(spent / start.elapsed().as_secs_f64()))
}

/// What tokens cost beyond what the process trees spend anyway: with one stream the difference is large.
fn without_idle(result: &mut Value, totals: &Totals, share: f64, wall: f64) {
    let cpu = result["cpu_s"].as_f64().unwrap_or_default() - share * wall;
    result["idle_cpu_share"] = json!(round(share, 5));
    if totals.tokens > 0 {
        result["cpu_us_per_token_less_idle"] = json!(round(cpu * 1e6 / totals.tokens as f64, 2));
    }
}

/// Keeps the largest sum of resident sets seen.
async fn sample(pids: Vec<u32>, peak: Arc<Mutex<f64>>) {
    while !pids.is_empty() {
        tokio::time::sleep(MEMORY_SAMPLE).await;
        if let Ok(usage) = procfs::usage(&pids) {
            let mut peak = peak.lock().unwrap_or_else(PoisonError::into_inner);
            *peak = peak.max(usage.rss_mib);
        }
    }
}

async fn closed(
    context: &Arc<Context>,
    streams: u64,
    requests: u64,
    ramp: Duration,
) -> Result<Totals, String> {
    let mut tasks = JoinSet::new();
    for slot in 0..streams.min(requests) {
        let context = context.clone();
        let delay = ramp.mul_f64(slot as f64 / streams as f64);
        tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            let mut totals = Totals::default();
            while context.next.load(Relaxed) < requests {
                let number = context.next.fetch_add(1, Relaxed);
                if number < requests {
                    totals.add(context.one(number).await);
                }
            }
            totals
        });
    }
    join(tasks).await
}

async fn open(
    context: &Arc<Context>,
    rate: f64,
    concurrency: usize,
    requests: u64,
) -> Result<Totals, String> {
    let places = Arc::new(Semaphore::new(concurrency));
    let mut tasks = JoinSet::new();
    let mut due = tokio::time::Instant::now();
    let mut random = context.seed | 1;
    for number in 0..requests {
        tokio::time::sleep_until(due).await;
        due += Duration::from_secs_f64(exponential(&mut random) / rate);
        let place = places.clone().acquire_owned().await.map_err(|error| error.to_string())?;
        let context = context.clone();
        tasks.spawn(async move {
            let mut totals = Totals::default();
            totals.add(context.one(number).await);
            drop(place);
            totals
        });
    }
    join(tasks).await
}

/// A sample of the exponential distribution of mean 1.
fn exponential(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let uniform = ((*state >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -uniform.ln()
}

async fn join(mut tasks: JoinSet<Totals>) -> Result<Totals, String> {
    let mut totals = Totals::default();
    while let Some(part) = tasks.join_next().await {
        totals.merge(part.map_err(|error| error.to_string())?);
    }
    Ok(totals)
}

impl Context {
    /// One request on a kept connection, or a new one.
    async fn one(&self, number: u64) -> Result<Answer, String> {
        tokio::time::timeout(self.request_limit, self.send(number))
            .await
            .unwrap_or_else(|_| Err("a request took too long".to_owned()))
    }

    async fn send(&self, number: u64) -> Result<Answer, String> {
        let kept = self.kept();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(&self.plan.address).await.map_err(|error| error.to_string())?,
        };
        let answer = self.plan.run(&mut connection, self.seed + number).await?;
        if connection.reusable && !self.fresh {
            self.idle().push(connection);
        }
        Ok(answer)
    }

    /// The last used connection that the server has not closed since.
    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop()).find(Connection::fresh)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_asked_mean() {
        let mut state = 1;
        let mean = (0..100_000).map(|_| exponential(&mut state)).sum::<f64>() / 1e5;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }
}
