//! The messages of `sglang.grpc.scheduler.SglangScheduler` that a load test needs, by hand.
//!
//! Only fields that are read or written here are declared; prost skips the others. Numbers and types are those
//! of `proto/wsgi_router/pb/sglang_scheduler.proto`.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct SamplingParams {
    #[prost(uint32, optional, tag = "8")]
    pub max_new_tokens: Option<u32>,
    #[prost(uint32, tag = "17")]
    pub n: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct TokenizedInput {
    #[prost(uint32, repeated, tag = "2")]
    pub input_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub tokenized: Option<TokenizedInput>,
    #[prost(message, optional, tag = "4")]
    pub sampling_params: Option<SamplingParams>,
    #[prost(bool, tag = "17")]
    pub stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateStreamChunk {
    #[prost(uint32, repeated, tag = "1")]
    pub token_ids: Vec<u32>,
    #[prost(uint32, tag = "2")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub cached_tokens: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateComplete {
    #[prost(uint32, repeated, tag = "1")]
    pub output_ids: Vec<u32>,
    #[prost(string, tag = "2")]
    pub finish_reason: String,
    #[prost(uint32, tag = "3")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub cached_tokens: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(oneof = "Event", tags = "2, 3")]
    pub response: Option<Event>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Event {
    #[prost(message, tag = "2")]
    Chunk(GenerateStreamChunk),
    #[prost(message, tag = "3")]
    Complete(GenerateComplete),
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AbortRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AbortResponse {
    #[prost(bool, tag = "1")]
    pub success: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetModelInfoResponse {
    #[prost(string, tag = "1")]
    pub model_path: String,
    #[prost(string, tag = "2")]
    pub tokenizer_path: String,
    #[prost(bool, tag = "3")]
    pub is_generation: bool,
    #[prost(string, tag = "5")]
    pub weight_version: String,
    #[prost(string, tag = "6")]
    pub served_model_name: String,
    #[prost(int32, tag = "7")]
    pub max_context_length: i32,
    #[prost(int32, tag = "8")]
    pub vocab_size: i32,
    #[prost(string, tag = "10")]
    pub model_type: String,
    #[prost(int32, repeated, tag = "11")]
    pub eos_token_ids: Vec<i32>,
    #[prost(int32, tag = "14")]
    pub max_req_input_len: i32,
    #[prost(string, repeated, tag = "15")]
    pub architectures: Vec<String>,
}

/// `google.protobuf.Value`, strings and numbers only.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(oneof = "ValueKind", tags = "2, 3")]
    pub kind: Option<ValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ValueKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetServerInfoResponse {
    #[prost(message, optional, tag = "1")]
    pub server_args: Option<Struct>,
    #[prost(int32, tag = "3")]
    pub active_requests: i32,
    #[prost(double, tag = "6")]
    pub uptime_seconds: f64,
    #[prost(string, tag = "7")]
    pub sglang_version: String,
    #[prost(string, tag = "8")]
    pub server_type: String,
    #[prost(int32, tag = "10")]
    pub max_total_num_tokens: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SchedulerLoad {
    #[prost(int32, tag = "2")]
    pub num_running_reqs: i32,
    #[prost(int32, tag = "4")]
    pub num_total_reqs: i32,
    #[prost(int32, tag = "6")]
    pub max_total_num_tokens: i32,
    #[prost(int32, tag = "11")]
    pub max_running_requests: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct AggregateMetrics {
    #[prost(int32, tag = "1")]
    pub total_running_reqs: i32,
    #[prost(int32, tag = "3")]
    pub total_reqs: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetLoadsResponse {
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int32, tag = "3")]
    pub dp_rank_count: i32,
    #[prost(message, repeated, tag = "4")]
    pub loads: Vec<SchedulerLoad>,
    #[prost(message, optional, tag = "5")]
    pub aggregate: Option<AggregateMetrics>,
}

/// A gRPC frame: one byte "not compressed", four bytes of length, the message.
pub fn frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut out = BytesMut::with_capacity(5 + len);
    out.put_u8(0);
    out.put_u32(len as u32);
    message.encode(&mut out).expect("the buffer grows as needed");
    out.freeze()
}

/// The message of a body that holds exactly one gRPC frame.
pub fn unframe<M: Message + Default>(body: &[u8]) -> Result<M, String> {
    let (head, message) = body.split_at_checked(5).ok_or_else(|| "no gRPC frame in the body".to_owned())?;
    if head[0] != 0 {
        return Err("compressed messages are not supported".to_owned());
    }
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if message.len() != len {
        return Err(format!("frame of {len} bytes, body of {}", message.len()));
    }
    M::decode(message).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_bad_ones_are_refused() {
        let sent = AbortRequest { request_id: "abc".into() };
        let body = frame(&sent);
        assert_eq!(&body[..5], &[0, 0, 0, 0, 5]);
        assert_eq!(unframe::<AbortRequest>(&body).unwrap(), sent);
        assert!(unframe::<AbortRequest>(&body[..4]).is_err());
        assert!(unframe::<AbortRequest>(&body[..8]).is_err());
        assert!(unframe::<AbortRequest>(&[1, 0, 0, 0, 0]).is_err());
    }
}
