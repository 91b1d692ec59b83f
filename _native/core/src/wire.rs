//! The messages of `sglang.grpc.scheduler` that the core writes (`GenerateRequest`) and reads
//! (`GenerateResponse`). Field numbers are those of `proto/wsgi_router/pb/sglang_scheduler.proto`;
//! fields the core has no use for are skipped when read.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    /// Left empty by `prepare`: the id differs for each attempt, and its caller puts it in front
    /// (protobuf fields may come in any order).
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub tokenized: Option<TokenizedInput>,
    #[prost(message, optional, tag = "4")]
    pub sampling_params: Option<SamplingParams>,
    #[prost(bool, tag = "5")]
    pub return_logprob: bool,
    #[prost(int32, tag = "6")]
    pub logprob_start_len: i32,
    #[prost(int32, tag = "7")]
    pub top_logprobs_num: i32,
    #[prost(bool, tag = "13")]
    pub log_metrics: bool,
    #[prost(string, tag = "15")]
    pub lora_id: String,
    #[prost(bool, tag = "17")]
    pub stream: bool,
    #[prost(bool, tag = "18")]
    pub require_reasoning: bool,
}

impl GenerateRequest {
    /// The bytes of this request, whose `tokenized` is left empty, with `input_ids` there. (prost would have to be
    /// given a copy of them, and measures them anew at each level before it writes them.)
    pub fn encode_with(&self, input_ids: &[u32]) -> Vec<u8> {
        let packed: usize = input_ids.iter().map(|&id| encoded_len_varint(id.into())).sum();
        let inner = key_len(IDS_FIELD) + encoded_len_varint(packed as u64) + packed;
        let outer = key_len(TOKENIZED_FIELD) + encoded_len_varint(inner as u64) + inner;
        let mut out = Vec::with_capacity(self.encoded_len() + outer);
        self.encode_raw(&mut out);
        for (field, length) in [(TOKENIZED_FIELD, inner), (IDS_FIELD, packed)] {
            encode_key(field, WireType::LengthDelimited, &mut out);
            encode_varint(length as u64, &mut out);
        }
        input_ids.iter().for_each(|&id| put_id(id, &mut out));
        out
    }
}

/// The fields of [`GenerateRequest::tokenized`] and [`TokenizedInput::input_ids`].
const TOKENIZED_FIELD: u32 = 2;
const IDS_FIELD: u32 = 2;

/// A varint; most ids have two bytes or three.
fn put_id(id: u32, out: &mut Vec<u8>) {
    let byte = |shift: u32| (id >> shift) as u8;
    match id {
        0..=0x7F => out.push(byte(0)),
        0x80..=0x3FFF => out.extend_from_slice(&[byte(0) | 0x80, byte(7)]),
        0x4000..=0x1F_FFFF => out.extend_from_slice(&[byte(0) | 0x80, byte(7) | 0x80, byte(14)]),
        _ => encode_varint(id.into(), out),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TokenizedInput {
    #[prost(string, tag = "1")]
    pub original_text: String,
    #[prost(uint32, repeated, tag = "2")]
    pub input_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SamplingParams {
    #[prost(float, tag = "1")]
    pub temperature: f32,
    #[prost(float, tag = "2")]
    pub top_p: f32,
    #[prost(int32, tag = "3")]
    pub top_k: i32,
    #[prost(float, tag = "4")]
    pub min_p: f32,
    #[prost(float, tag = "5")]
    pub frequency_penalty: f32,
    #[prost(float, tag = "6")]
    pub presence_penalty: f32,
    #[prost(float, tag = "7")]
    pub repetition_penalty: f32,
    #[prost(uint32, optional, tag = "8")]
    pub max_new_tokens: Option<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub stop_token_ids: Vec<u32>,
    #[prost(bool, tag = "11")]
    pub skip_special_tokens: bool,
    #[prost(bool, tag = "12")]
    pub spaces_between_special_tokens: bool,
    #[prost(oneof = "Constraint", tags = "13, 14, 15, 16")]
    pub constraint: Option<Constraint>,
    #[prost(uint32, tag = "17")]
    pub n: u32,
    #[prost(uint32, tag = "18")]
    pub min_new_tokens: u32,
    #[prost(bool, tag = "19")]
    pub ignore_eos: bool,
    #[prost(bool, tag = "20")]
    pub no_stop_trim: bool,
    #[prost(map = "string, float", tag = "22")]
    pub logit_bias: std::collections::HashMap<String, f32>,
    #[prost(message, optional, tag = "23")]
    pub custom_params: Option<Struct>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Constraint {
    #[prost(string, tag = "13")]
    Regex(String),
    #[prost(string, tag = "14")]
    JsonSchema(String),
    #[prost(string, tag = "15")]
    EbnfGrammar(String),
    #[prost(string, tag = "16")]
    StructuralTag(String),
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: std::collections::BTreeMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// `google.protobuf.NullValue`, whose one value is 0.
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    #[prost(oneof = "Response", tags = "2, 3")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Response {
    #[prost(message, tag = "2")]
    Chunk(GenerateStreamChunk),
    #[prost(message, tag = "3")]
    Complete(GenerateComplete),
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
    #[prost(uint32, tag = "9")]
    pub reasoning_tokens: u32,
    /// Of this chunk's ids.
    #[prost(message, optional, boxed, tag = "5")]
    pub output_logprobs: Option<Box<OutputLogProbs>>,
    /// In the first chunk only.
    #[prost(message, optional, boxed, tag = "7")]
    pub input_logprobs: Option<Box<InputLogProbs>>,
}

/// Parallel lists over output positions.
#[derive(Clone, PartialEq, Message)]
pub struct OutputLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub token_logprobs: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub top_logprobs: Vec<TopLogProbs>,
}

/// Parallel lists over the likeliest ids of one position, best first.
#[derive(Clone, PartialEq, Message)]
pub struct TopLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
}

/// Parallel lists over prompt positions.
#[derive(Clone, PartialEq, Message)]
pub struct InputLogProbs {
    #[prost(message, repeated, tag = "1")]
    pub token_logprobs: Vec<InputTokenLogProb>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub top_logprobs: Vec<TopLogProbs>,
}

/// Unset for the first token, which nothing predicts.
#[derive(Clone, PartialEq, Message)]
pub struct InputTokenLogProb {
    #[prost(float, optional, tag = "1")]
    pub value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateComplete {
    #[prost(uint32, repeated, tag = "1")]
    pub output_ids: Vec<u32>,
    /// "stop", "length" or "abort"; an abort may carry the worker's words after it.
    #[prost(string, tag = "2")]
    pub finish_reason: String,
    #[prost(uint32, tag = "3")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub cached_tokens: u32,
    #[prost(uint32, tag = "12")]
    pub reasoning_tokens: u32,
    /// Of the ids this message carries, or of all.
    #[prost(message, optional, boxed, tag = "6")]
    pub output_logprobs: Option<Box<OutputLogProbs>>,
    #[prost(message, optional, boxed, tag = "10")]
    pub input_logprobs: Option<Box<InputLogProbs>>,
    #[prost(oneof = "MatchedStop", tags = "8, 9")]
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum MatchedStop {
    #[prost(uint32, tag = "8")]
    TokenId(u32),
    #[prost(string, tag = "9")]
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_prost_writes_them() {
        let edges =
            [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1F_FFFF, 0x20_0000, 0xFFF_FFFF, 0x1000_0000, u32::MAX];
        let bare = GenerateRequest { lora_id: "l".into(), stream: true, ..Default::default() };
        for count in [1, 2, 5, 11, 60, 200, 9000] {
            let input_ids: Vec<u32> = edges.iter().copied().cycle().take(count).collect();
            let got = bare.encode_with(&input_ids);
            let want = GenerateRequest {
                tokenized: Some(TokenizedInput { original_text: String::new(), input_ids }),
                ..bare.clone()
            };
            assert_eq!(GenerateRequest::decode(&*got).unwrap(), want);
            assert_eq!(got.len(), want.encoded_len());
        }
    }
}
