//! An SGLang gRPC worker that costs little: it streams ids from a list at a given pace.

mod pacing;
mod rpc;
mod serve;
mod state;

use crate::args::{Args, Opt};
use pacing::Pacing;
use state::{Model, State};
use std::sync::Arc;
use std::time::Duration;

pub const OPTIONS: &[Opt] = &[
    Opt { name: "port", value: "P", default: "0", help: "port on 127.0.0.1; 0 takes a free one" },
    Opt {
        name: "tokens",
        value: "N",
        default: "1048576",
        help: "longest answer; shorter than asked ends with \"stop\"",
    },
    Opt { name: "ttft-ms", value: "MS", default: "0", help: "time to the first token" },
    Opt { name: "itl-ms", value: "MS", default: "20", help: "time between two tokens of a stream" },
    Opt {
        name: "burst",
        value: "",
        default: "",
        help: "no pacing: tokens as fast as flow control lets them",
    },
    Opt { name: "engine-like", value: "", default: "", help: "all streams step together, as a batch does" },
    Opt {
        name: "ids-file",
        value: "FILE",
        default: "",
        help: "token ids to send, in turn (white space between)",
    },
    Opt { name: "id-low", value: "ID", default: "1000", help: "without a file: first id of the range" },
    Opt { name: "id-high", value: "ID", default: "1999", help: "without a file: last id of the range" },
    Opt { name: "model", value: "NAME", default: "bench-model", help: "served model name" },
    Opt { name: "tokenizer-path", value: "PATH", default: "", help: "tokenizer path told by GetModelInfo" },
    Opt { name: "context-length", value: "N", default: "262144", help: "longest context told" },
    Opt {
        name: "vocab-size",
        value: "N",
        default: "151936",
        help: "vocabulary size told; larger ids are refused",
    },
    Opt { name: "max-seconds", value: "S", default: "3600", help: "ends by itself after this time" },
];

/// Serves until SIGTERM, SIGINT or `--max-seconds`, then prints its counts as one JSON line.
pub fn main(words: &[String]) -> Result<(), String> {
    let args = Args::parse(OPTIONS, words)?;
    let state = Arc::new(State::new(pacing(&args)?, model(&args)?, ids(&args)?, args.get("tokens")?));
    let port: u16 = args.get("port")?;
    let limit = Duration::from_secs_f64(args.get("max-seconds")?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(serve::serve(state.clone(), port, limit))?;
    println!("{}", state.counts());
    Ok(())
}

fn pacing(args: &Args) -> Result<Pacing, String> {
    let millis = |name| args.get::<f64>(name).map(|ms| Duration::from_secs_f64(ms / 1e3));
    Ok(Pacing::new(
        millis("ttft-ms")?,
        if args.switch("burst") { Duration::ZERO } else { millis("itl-ms")? },
        args.switch("engine-like"),
    ))
}

fn model(args: &Args) -> Result<Model, String> {
    Ok(Model {
        name: args.get("model")?,
        tokenizer_path: args.text("tokenizer-path").unwrap_or_default().to_owned(),
        context_length: args.get("context-length")?,
        vocab_size: args.get("vocab-size")?,
    })
}

fn ids(args: &Args) -> Result<Vec<u32>, String> {
    let ids: Vec<u32> = match args.text("ids-file") {
        None => (args.get("id-low")?..=args.get("id-high")?).collect(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{path}: {error}"))?
            .split_whitespace()
            .map(|word| word.parse().map_err(|_| format!("{path}: bad id {word:?}")))
            .collect::<Result<_, _>>()?,
    };
    let vocab_size: u32 = args.get("vocab-size")?;
    match ids.iter().find(|&&id| id >= vocab_size) {
        Some(id) => Err(format!("id {id} is outside the vocabulary of {vocab_size}")),
        None if ids.is_empty() => Err("no token ids".to_owned()),
        None => Ok(ids),
    }
}
