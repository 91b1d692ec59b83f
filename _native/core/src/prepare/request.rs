//! The `GenerateRequest` of a job. Its sampling parameters are written out one and all, since proto3's zeros are not
//! SGLang's defaults.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::job::{Job, Sampling};
use crate::error::{Code, Error, Result};
use crate::integers;
use crate::wire::{Constraint, GenerateRequest, Kind, ListValue, SamplingParams, Struct, Value};

pub(super) fn encode(job: &Job, input_ids: &[u32], max_new_tokens: Option<u32>) -> Result<Vec<u8>> {
    let request = GenerateRequest {
        request_id: String::new(),
        tokenized: None,
        sampling_params: Some(sampling_params(&job.sampling, max_new_tokens)?),
        return_logprob: job.return_logprob,
        logprob_start_len: job.logprob_start_len,
        top_logprobs_num: job.top_logprobs_num,
        log_metrics: true,
        lora_id: job.lora_id.clone(),
        stream: job.stream,
        require_reasoning: job.require_reasoning,
    };
    Ok(request.encode_with(input_ids))
}

fn sampling_params(sampling: &Sampling, max_new_tokens: Option<u32>) -> Result<SamplingParams> {
    Ok(SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repetition_penalty: sampling.repetition_penalty,
        max_new_tokens,
        stop_token_ids: sampling.stop_token_ids.clone(),
        // What the client wants skipped is skipped here, where the text is made.
        skip_special_tokens: true,
        spaces_between_special_tokens: true,
        constraint: constraint(sampling)?,
        n: 1,
        min_new_tokens: sampling.min_new_tokens,
        ignore_eos: sampling.ignore_eos,
        no_stop_trim: sampling.no_stop_trim,
        logit_bias: sampling.logit_bias.clone(),
        custom_params: sampling.custom_params.as_ref().map(structure),
    })
}

fn constraint(sampling: &Sampling) -> Result<Option<Constraint>> {
    let all = [
        sampling.regex.clone().map(Constraint::Regex),
        sampling.json_schema.clone().map(Constraint::JsonSchema),
        sampling.ebnf.clone().map(Constraint::EbnfGrammar),
        sampling.structural_tag.clone().map(Constraint::StructuralTag),
    ];
    let mut given = all.into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(Error::new(Code::InvalidRequest, "At most one constraint can be given."));
    }
    Ok(first)
}

fn structure(object: &Map<String, Json>) -> Struct {
    let fields: BTreeMap<_, _> = object.iter().map(|(name, item)| (name.clone(), value(item))).collect();
    Struct { fields }
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::Null(0),
        Json::Bool(flag) => Kind::Bool(*flag),
        Json::Number(number) => Kind::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::String(text.clone()),
        Json::Array(items) => Kind::List(ListValue { values: items.iter().map(value).collect() }),
        Json::Object(object) => match integers::wrapped(json) {
            Some(digits) => Kind::Number(digits.parse().unwrap_or_default()),
            None => Kind::Struct(structure(object)),
        },
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use serde_json::json;

    use super::super::job::tests::job;
    use super::*;

    #[test]
    fn the_defaults_are_written_out() {
        let bytes = encode(&job(json!({"stream": true})), &[5, 6], Some(7)).unwrap();
        let request = GenerateRequest::decode(&*bytes).unwrap();
        let sampling = request.sampling_params.unwrap();
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (1.0, 1.0, -1));
        assert_eq!((sampling.repetition_penalty, sampling.n), (1.0, 1));
        assert_eq!(sampling.max_new_tokens, Some(7));
        assert_eq!(request.tokenized.unwrap().input_ids, [5, 6]);
        assert_eq!(request.logprob_start_len, -1);
        assert!(request.stream && request.request_id.is_empty());
    }

    #[test]
    fn custom_params_become_a_struct() {
        let given = json!({"seed": 7, "list": [null, true, "x", {"y": 1.5}]});
        let made = structure(given.as_object().unwrap());
        assert_eq!(made.fields["seed"], Value { kind: Some(Kind::Number(7.0)) });
        let Some(Kind::List(list)) = &made.fields["list"].kind else { panic!("a list") };
        assert_eq!(list.values.len(), 4);
        assert_eq!(list.values[0], Value { kind: Some(Kind::Null(0)) });
    }

    #[test]
    fn two_constraints_are_refused() {
        let both = Sampling { regex: Some("a".into()), ebnf: Some("b".into()), ..Sampling::default() };
        assert_eq!(constraint(&both).unwrap_err().code, Code::InvalidRequest);
    }
}
