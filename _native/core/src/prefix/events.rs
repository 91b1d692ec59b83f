//! The messages of `SubscribeKvEvents`, as far as they are read; `proto/wsgi_router/pb/common.proto` has all.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Batch {
    #[prost(uint64, tag = "1")]
    pub sequence_number: u64,
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<Event>,
    #[prost(int32, optional, tag = "4")]
    pub dp_rank: Option<i32>,
    #[prost(message, optional, tag = "7")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(oneof = "Data", tags = "2, 3, 4")]
    pub data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    #[prost(message, tag = "2")]
    Stored(Stored),
    #[prost(message, tag = "3")]
    Removed(Removed),
    #[prost(message, tag = "4")]
    Cleared(Cleared),
}

#[derive(Clone, PartialEq, Message)]
pub struct Stored {
    #[prost(message, repeated, tag = "1")]
    pub blocks: Vec<Block>,
    #[prost(int64, optional, tag = "2")]
    pub parent_block_hash: Option<i64>,
    #[prost(int32, optional, tag = "3")]
    pub tier: Option<i32>,
    #[prost(uint32, optional, tag = "5")]
    pub group_idx: Option<u32>,
    #[prost(int32, optional, tag = "8")]
    pub locality: Option<i32>,
    #[prost(string, optional, tag = "11")]
    pub lora_name: Option<String>,
    #[prost(string, optional, tag = "12")]
    pub cache_salt: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(int64, tag = "1")]
    pub block_hash: i64,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    #[prost(int64, optional, tag = "4")]
    pub lora_id: Option<i64>,
    #[prost(message, repeated, tag = "6")]
    pub extra_keys: Vec<ExtraKey>,
}

/// That there is one is all that counts.
#[derive(Clone, PartialEq, Message)]
pub struct ExtraKey {}

#[derive(Clone, PartialEq, Message)]
pub struct Removed {
    #[prost(int64, repeated, tag = "1")]
    pub block_hashes: Vec<i64>,
    #[prost(int32, optional, tag = "3")]
    pub tier: Option<i32>,
    #[prost(uint32, optional, tag = "5")]
    pub group_idx: Option<u32>,
    #[prost(int32, optional, tag = "6")]
    pub locality: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Cleared {}

#[derive(Clone, PartialEq, Message)]
pub struct Snapshot {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(uint64, tag = "4")]
    pub unknown_before: u64,
}

/// `KvCacheLocality`: in a pool that several workers share.
pub(crate) const REMOTE: i32 = 2;
