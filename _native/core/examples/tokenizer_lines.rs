//! A tokenizer on standard input and output, for comparing it with another one.
//!
//! `tokenizer_lines PATH` reads one JSON object a line and answers with one:
//! - `{"encode": text, "special": bool}` → `{"ids": […]}`
//! - `{"decode": [ids], "skip": bool}` → `{"text": whole, "stream": pieces}`, the second from the
//!   incremental decoder
//! - `{"info": true}` → what the tokenizer knows about itself, and the process's memory in KiB

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use wsgi_router_core::tokenizer::Tokenizer;

fn main() {
    let path = std::env::args().nth(1).expect("usage: tokenizer_lines PATH");
    let tokenizer = match Tokenizer::load(Path::new(&path)) {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input is UTF-8");
        let job: Value = serde_json::from_str(&line).expect("a JSON object a line");
        writeln!(out, "{}", answer(&tokenizer, &job)).expect("standard output takes it");
        out.flush().expect("standard output takes it");
    }
}

fn answer(tokenizer: &Arc<Tokenizer>, job: &Value) -> Value {
    if let Some(text) = job["encode"].as_str() {
        return match tokenizer.encode(text, job["special"] == true) {
            Ok(ids) => json!({ "ids": ids }),
            Err(error) => json!({ "error": error.message }),
        };
    }
    if let Some(ids) = job["decode"].as_array() {
        let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap_or(u64::MAX) as u32).collect();
        let skip = job["skip"] == true;
        let mut stream = String::new();
        let mut decoder = tokenizer.decoder(skip);
        ids.iter().for_each(|&id| decoder.push(id, &mut stream));
        decoder.flush(&mut stream);
        return json!({ "text": tokenizer.decode(&ids, skip), "stream": stream });
    }
    json!({
        "backend": tokenizer.backend(),
        "vocab_size": tokenizer.vocab_size(),
        "eos_token_ids": tokenizer.eos_token_ids(),
        "special_tokens": tokenizer.special_tokens(),
        "templates": tokenizer.named_templates().keys().collect::<Vec<_>>(),
        "model_max_length": tokenizer.model_max_length(),
        "memory": memory("VmRSS:"),
        "memory_peak": memory("VmHWM:"),
        "threads": memory("Threads:"),
    })
}

/// A line of the process's status; 0 where there is none.
fn memory(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}
