//! What all connections share: the settings, the running requests, the counts.

use super::pacing::Pacing;
use serde_json::json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

pub struct Model {
    pub name: String,
    pub tokenizer_path: String,
    pub context_length: i32,
    pub vocab_size: i32,
}

/// A running request's end from outside.
#[derive(Default)]
pub struct Cancel {
    aborted: AtomicBool,
    pub notify: Notify,
}

impl Cancel {
    pub fn aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Counts {
    pub started: AtomicU64,
    pub finished: AtomicU64,
    pub gone: AtomicU64,
    pub aborted: AtomicU64,
    pub refused: AtomicU64,
    pub tokens: AtomicU64,
}

pub struct State {
    pub pacing: Pacing,
    pub model: Model,
    pub longest: u32,
    pub counts: Counts,
    ids: Vec<u32>,
    running: Mutex<HashMap<String, Arc<Cancel>>>,
    since: Instant,
}

impl State {
    pub fn new(pacing: Pacing, model: Model, ids: Vec<u32>, longest: u32) -> State {
        State {
            pacing,
            model,
            longest,
            ids,
            counts: Counts::default(),
            running: Mutex::default(),
            since: Instant::now(),
        }
    }

    /// Token `index` of every answer: all answers of one length are the same text.
    pub fn id(&self, index: u32) -> u32 {
        self.ids[index as usize % self.ids.len()]
    }

    /// Enters a request; its place is left when the guard drops. None: the id is already running.
    pub fn enter(self: &Arc<State>, id: &str) -> Option<Running> {
        let cancel = Arc::new(Cancel::default());
        let mut running = self.running();
        if running.contains_key(id) {
            return None;
        }
        running.insert(id.to_owned(), cancel.clone());
        self.counts.started.fetch_add(1, Relaxed);
        Some(Running { state: self.clone(), id: id.to_owned(), cancel })
    }

    /// Aborts every running request whose id starts with `prefix`; their number.
    pub fn abort(&self, prefix: &str) -> usize {
        let running = self.running();
        let hit = running.iter().filter(|(id, _)| id.starts_with(prefix));
        hit.map(|(_, cancel)| {
            cancel.aborted.store(true, Relaxed);
            cancel.notify.notify_one();
        })
        .count()
    }

    pub fn active(&self) -> i32 {
        self.running().len() as i32
    }

    pub fn uptime(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    pub fn counts(&self) -> serde_json::Value {
        let of = |count: &AtomicU64| count.load(Relaxed);
        json!({
            "started": of(&self.counts.started),
            "finished": of(&self.counts.finished),
            "gone": of(&self.counts.gone),
            "aborted": of(&self.counts.aborted),
            "refused": of(&self.counts.refused),
            "tokens": of(&self.counts.tokens),
            "running": self.active(),
        })
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Cancel>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running request.
pub struct Running {
    state: Arc<State>,
    id: String,
    pub cancel: Arc<Cancel>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.state.running().remove(&self.id);
    }
}
