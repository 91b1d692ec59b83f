//! The native core of wsgi-router: everything between a parsed HTTP request and the bytes on two wires.
//!
//! Layout, top down:
//! - [`ffi`]: the C ABI, the only unsafe code; catches panics, owns handles.
//! - [`body`]: what a request's JSON will cost, before it is decoded.
//! - [`http1`]: the heads of requests, where they are of the plain kind.
//! - [`prefix`]: which worker has which prompts' beginnings in its cache.
//! - [`prepare`]: a job (messages, sampling …) → prompt → token ids → `GenerateRequest` bytes.
//! - [`stream`]: `GenerateResponse` bytes → text → stop words → OpenAI events, or one aggregated answer.
//! - [`net`]: the workers' gRPC calls in a thread of its own, which feeds `stream` and may write to the client.
//! - [`parsers`]: tool calls and reasoning in a model's text.
//! - [`template`]: chat templates, as Hugging Face renders them.
//! - [`tokenizer`]: text ↔ token ids, incremental decoding by bytes.
//! - [`wire`]: the worker's protobuf messages that the core reads and writes.
//! - `integers`: integers beyond 64 bits, kept whole.
//! - [`heap`]: made ready for a fork.
//! - [`error`]: what can go wrong and whose fault it is.

#![deny(unsafe_code)]

pub mod body;
pub mod error;
pub mod heap;
pub mod http1;
mod integers;
pub mod net;
pub mod parsers;
pub mod prefix;
pub mod prepare;
pub mod stream;
pub mod template;
pub mod tokenizer;
pub mod wire;

#[allow(unsafe_code)]
pub mod ffi;
