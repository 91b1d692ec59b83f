//! The load client: closed loop (a number of streams) or open loop (a rate), one JSON object at the end.

mod http;
mod request;
mod run;
mod sse;

use crate::args::{Args, Opt};
use request::Plan;
use run::{Loop, Run};
use std::time::Duration;

pub const OPTIONS: &[Opt] = &[
    Opt {
        name: "url",
        value: "URL",
        default: "",
        help: "http://HOST:PORT[/path] (path: /v1/chat/completions)",
    },
    Opt { name: "streams", value: "N", default: "1", help: "closed loop: requests in flight" },
    Opt { name: "requests", value: "M", default: "1", help: "requests in all" },
    Opt { name: "rate", value: "R", default: "", help: "open loop: requests a second, Poisson arrivals" },
    Opt { name: "concurrency", value: "N", default: "100000", help: "open loop: most requests in flight" },
    Opt {
        name: "ramp-ms",
        value: "MS",
        default: "0",
        help: "closed loop: the streams start spread over this time",
    },
    Opt {
        name: "max-tokens",
        value: "T",
        default: "16",
        help: "tokens of each answer; another count is an error",
    },
    Opt {
        name: "prompt-tokens",
        value: "K",
        default: "20",
        help: "words of each prompt (about a token each)",
    },
    Opt { name: "stream", value: "", default: "", help: "ask for a stream (the default)" },
    Opt { name: "no-stream", value: "", default: "", help: "ask for whole answers" },
    Opt { name: "model", value: "NAME", default: "bench-model", help: "model to ask for" },
    Opt { name: "api-key", value: "KEY", default: "", help: "bearer key" },
    Opt { name: "fresh", value: "", default: "", help: "a new connection for each request" },
    Opt { name: "pids", value: "A,B", default: "", help: "roots of the process trees to account" },
    Opt {
        name: "idle-ms",
        value: "MS",
        default: "0",
        help: "first account the idle process trees for this time",
    },
    Opt {
        name: "seed",
        value: "N",
        default: "1",
        help: "seed of the arrivals; also the first prompt's number",
    },
    Opt {
        name: "request-seconds",
        value: "S",
        default: "120",
        help: "a request longer than this is an error",
    },
    Opt { name: "max-seconds", value: "S", default: "600", help: "the run ends as an error after this time" },
];

/// Runs the load and prints the result; errors of requests are in it and make the exit code 1.
pub fn main(words: &[String]) -> Result<(), String> {
    let args = Args::parse(OPTIONS, words)?;
    let run = Run {
        plan: plan(&args)?,
        pattern: pattern(&args)?,
        requests: args.get("requests")?,
        seed: args.get("seed")?,
        fresh: args.switch("fresh"),
        pids: pids(&args)?,
        idle: Duration::from_secs_f64(args.get::<f64>("idle-ms")? / 1e3),
        request_limit: Duration::from_secs_f64(args.get("request-seconds")?),
        limit: Duration::from_secs_f64(args.get("max-seconds")?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let result = runtime.block_on(run.run())?;
    println!("{result}");
    match result["errors"]["count"].as_u64() {
        Some(0) => Ok(()),
        _ => Err(format!("requests failed: {}", result["errors"])),
    }
}

fn plan(args: &Args) -> Result<Plan, String> {
    let url: String = args.get("url")?;
    let rest = url.strip_prefix("http://").ok_or("--url: only http:// is spoken")?;
    let (address, path) = match rest.split_once('/') {
        Some((address, path)) if !path.is_empty() => (address, format!("/{path}")),
        Some((address, _)) => (address, "/v1/chat/completions".to_owned()),
        None => (rest, "/v1/chat/completions".to_owned()),
    };
    if args.switch("stream") && args.switch("no-stream") {
        return Err("--stream and --no-stream exclude each other".to_owned());
    }
    Ok(Plan {
        address: address.to_owned(),
        path,
        model: args.get("model")?,
        api_key: args.text("api-key").map(str::to_owned),
        max_tokens: args.get("max-tokens")?,
        prompt_tokens: args.get("prompt-tokens")?,
        stream: !args.switch("no-stream"),
    })
}

fn pattern(args: &Args) -> Result<Loop, String> {
    Ok(match args.maybe::<f64>("rate")? {
        Some(rate) if rate > 0.0 => Loop::Open { rate, concurrency: args.get("concurrency")? },
        Some(_) => return Err("--rate must be positive".to_owned()),
        None => Loop::Closed {
            streams: args.get("streams")?,
            ramp: Duration::from_secs_f64(args.get::<f64>("ramp-ms")? / 1e3),
        },
    })
}

fn pids(args: &Args) -> Result<Vec<u32>, String> {
    let text = args.text("pids").unwrap_or_default();
    text.split(',')
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| format!("--pids: bad value {word:?}")))
        .collect()
}
