//! Log probabilities for tests: what a worker would say of each token, and what a client has to read of it.

use serde_json::{Map, Value, json};

use super::fixtures::Bytes;
use crate::stream::*;
use crate::wire::{InputLogProbs, InputTokenLogProb, OutputLogProbs, TopLogProbs};

/// Made from the token and its place, so that an entry in the wrong place is found out.
fn score(position: usize, id: u32) -> f32 {
    match position % 7 {
        0 => f32::NEG_INFINITY,
        place => -((id % 32) as f32) / 4.0 - place as f32 / 64.0,
    }
}

fn row(position: usize, id: u32) -> Vec<(u32, f32)> {
    let others = (1..3).map(|n| (id.wrapping_mul(7).wrapping_add(position as u32 + n) % 272, -(n as f32)));
    std::iter::once((id, score(position, id))).chain(others).collect()
}

fn top(position: usize, id: u32) -> TopLogProbs {
    let (token_ids, values) = row(position, id).into_iter().unzip();
    TopLogProbs { values, token_ids }
}

/// Of `ids`, the first of which is the answer's token number `from` (from 0).
pub fn output(ids: &[u32], from: usize) -> Option<Box<OutputLogProbs>> {
    Some(Box::new(OutputLogProbs {
        token_logprobs: ids.iter().zip(from..).map(|(&id, at)| score(at, id)).collect(),
        token_ids: ids.to_vec(),
        top_logprobs: ids.iter().zip(from..).map(|(&id, at)| top(at, id)).collect(),
    }))
}

pub fn prompt(ids: &[u32]) -> Option<Box<InputLogProbs>> {
    let value = |(at, &id): (usize, &u32)| InputTokenLogProb { value: (at > 0).then(|| score(at, id)) };
    let rows = ids.iter().enumerate().map(|(at, &id)| if at > 0 { top(at, id) } else { Default::default() });
    Some(Box::new(InputLogProbs {
        token_logprobs: ids.iter().enumerate().map(value).collect(),
        token_ids: ids.to_vec(),
        top_logprobs: rows.collect(),
    }))
}

/// A token in its place: number, id, characters before it, whether it is the prompt's first.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub at: usize,
    pub id: u32,
    pub offset: usize,
    pub first: bool,
}

/// What the client reads of a token.
pub fn expected(vocabulary: &Bytes, options: &Options, token: &Token) -> Value {
    let Token { at, id, offset, first } = *token;
    let logprob = (!first).then(|| finite(score(at, id)));
    let mut rows = if first { Vec::new() } else { row(at, id) };
    rows.truncate(options.logprobs.unwrap() as usize);
    match options.object {
        Object::Chat => {
            let all: Vec<_> = rows.iter().map(|&(id, value)| chat(vocabulary, id, finite(value))).collect();
            let mut entry = chat(vocabulary, id, logprob.unwrap());
            entry["top_logprobs"] = json!(all);
            entry
        }
        Object::Completion => {
            let own = logprob.map(|_| (id, score(at, id)));
            let mut all = Map::new();
            for (id, value) in rows.iter().copied().chain(own) {
                all.entry(name(vocabulary, id)).or_insert(json!(finite(value)));
            }
            let all = if all.is_empty() { Value::Null } else { Value::Object(all) };
            json!([name(vocabulary, id), logprob, all, offset])
        }
        Object::Generate => {
            let text = |id| {
                let text = String::from_utf8_lossy(vocabulary.bytes(id)).into_owned();
                options.logprobs_text.then_some(text)
            };
            let all: Vec<_> = rows.iter().map(|&(id, value)| json!([finite(value), id, text(id)])).collect();
            let all = if all.is_empty() { Value::Null } else { json!(all) };
            let own = json!([logprob, id, text(id)]);
            if options.logprobs == Some(0) { own } else { json!([own, all]) }
        }
    }
}

/// As it reads back from JSON.
fn finite(value: f32) -> f64 {
    if value.is_finite() { value.into() } else { -9999.0 }
}

fn chat(vocabulary: &Bytes, id: u32, logprob: f64) -> Value {
    let bytes = vocabulary.token_bytes(id);
    let token = String::from_utf8_lossy(bytes.unwrap_or_default());
    json!({"token": token, "logprob": logprob, "bytes": bytes})
}

fn name(vocabulary: &Bytes, id: u32) -> String {
    let bytes = vocabulary.bytes(id);
    let spelled = || bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| format!("bytes:{}", spelled()))
}
