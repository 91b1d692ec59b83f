//! `load worker` plays an SGLang gRPC worker; `load client` drives an OpenAI HTTP server and measures it.
//!
//! Layout: `args` (options) · `wire` (protobuf messages) · `worker/` (`state`, `pacing`, `rpc`, `serve`) ·
//! `client/` (`http`, `sse`, `request`, `run`) · `stats` (percentiles) · `procfs` (CPU and memory of process
//! trees). Both run on one thread: on a small machine the load must not take the router's cores.

mod args;
mod client;
mod procfs;
mod stats;
mod wire;
mod worker;

use args::usage;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((name, rest)) if name == "worker" => worker::main(rest),
        Some((name, rest)) if name == "client" => client::main(rest),
        _ => Err(help()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("load: {message}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    format!(
        "usage: load worker|client [options]\n\nload worker\n{}\nload client\n{}",
        usage(worker::OPTIONS),
        usage(client::OPTIONS)
    )
}
