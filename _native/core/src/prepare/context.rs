//! Whether a prompt and its answer fit into the model's context.

use super::job::Job;
use crate::error::{Code, Error, Result};

/// Refuses text that cannot fit whatever its tokens are: encoding takes memory many times its size.
pub(super) fn check_text(prompt: &str, job: &Job, longest_token: usize) -> Result<()> {
    let Some(context) = job.context_length else { return Ok(()) };
    let least = (prompt.len() as u64).div_ceil(longest_token.max(1) as u64);
    if least <= job.longest_prompt(context) {
        return Ok(());
    }
    let what = job.source();
    Err(job.too_long(format!(
        "This model's maximum context length is {context} tokens. However, your {what} resulted in more than \
         that ({} bytes of text). Please reduce the length of the {what}.",
        prompt.len()
    )))
}

/// How many tokens the worker may make.
pub(super) fn answer_limit(job: &Job, prompt: u64) -> Result<Option<u32>> {
    if prompt == 0 {
        return Err(Error::new(Code::InvalidRequest, "The prompt is empty.").at(job.source()));
    }
    let what = job.source();
    let wanted = job.max_tokens;
    let Some(context) = job.context_length else {
        return Ok(wanted.map(clamp));
    };
    if prompt > job.longest_prompt(context) {
        return Err(job.too_long(format!(
            "This model's maximum context length is {context} tokens. However, your {what} resulted in \
             {prompt} tokens. Please reduce the length of the {what}."
        )));
    }
    let least = u64::from(job.sampling.min_new_tokens);
    if least > context - prompt {
        let text = format!(
            "'min_tokens' must leave room for the prompt: the model's context holds {context} tokens, the \
             messages are {prompt}, and {least} more were asked for."
        );
        return Err(Error::new(Code::InvalidRequest, text).at("min_tokens"));
    }
    match wanted {
        Some(wanted) if wanted > context - prompt => Err(job.too_long(format!(
            "This model's maximum context length is {context} tokens. However, you requested {} tokens \
             ({prompt} in the {what}, {wanted} in the completion). Please reduce the length of the {what} or \
             completion.",
            prompt.saturating_add(wanted)
        ))),
        wanted => Ok(Some(clamp(wanted.unwrap_or(context - prompt)))),
    }
}

fn clamp(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::job::tests::job;
    use super::*;

    fn limit(fields: Json, prompt: u64) -> std::result::Result<Option<u32>, Code> {
        answer_limit(&job(fields), prompt).map_err(|error| error.code)
    }

    #[test]
    fn the_answer_fits_into_the_context() {
        assert_eq!(limit(json!({}), 10), Ok(None));
        assert_eq!(limit(json!({"max_tokens": 5}), 10), Ok(Some(5)));
        assert_eq!(limit(json!({"context_length": 100}), 10), Ok(Some(90)));
        assert_eq!(limit(json!({"context_length": 100, "max_tokens": 90}), 10), Ok(Some(90)));
        assert_eq!(limit(json!({"context_length": 100, "max_tokens": 91}), 10), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 100}), 100), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 100, "embed": true}), 100), Ok(Some(0)));
        assert_eq!(limit(json!({"context_length": 100, "embed": true}), 101), Err(Code::ContextLength));
        assert_eq!(limit(json!({"context_length": 0}), 1), Err(Code::ContextLength));
        assert_eq!(
            limit(json!({"context_length": 100, "max_tokens": u64::MAX}), 10),
            Err(Code::ContextLength)
        );
        assert_eq!(limit(json!({}), 0), Err(Code::InvalidRequest));
        let at_least = |tokens: u32| json!({"context_length": 100, "sampling": {"min_new_tokens": tokens}});
        assert_eq!(limit(at_least(90), 10), Ok(Some(90)));
        assert_eq!(answer_limit(&job(at_least(91)), 10).unwrap_err().param, "min_tokens");
    }

    #[test]
    fn text_that_cannot_fit_is_not_encoded() {
        let of_ten = job(json!({"context_length": 10}));
        assert!(check_text(&"x".repeat(80), &of_ten, 8).is_err());
        assert!(check_text(&"x".repeat(72), &of_ten, 8).is_ok());
        assert!(check_text(&"x".repeat(1000), &job(json!({})), 8).is_ok());
    }
}
