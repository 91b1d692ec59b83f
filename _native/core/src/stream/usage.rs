//! Token counts, as the worker reports them and as the client reads them.

use super::json;

/// Counts of one choice, or of a whole response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u64,
    pub completion: u64,
    /// Prompt tokens that came from the worker's prefix cache.
    pub cached: u64,
    pub reasoning: u64,
}

impl Usage {
    /// Takes one choice's change from `before` to `after` into the response's counts. The choices share one
    /// prompt, so its counts are the largest seen; completion and reasoning are sums.
    pub fn advance(&mut self, before: &Usage, after: &Usage) {
        self.prompt = self.prompt.max(after.prompt);
        self.cached = self.cached.max(after.cached);
        self.completion = (self.completion + after.completion).saturating_sub(before.completion);
        self.reasoning = (self.reasoning + after.reasoning).saturating_sub(before.reasoning);
    }

    /// What a client reads: `prompt` where the worker did not say, and no part larger than its whole.
    pub fn settled(&self, prompt: u64) -> Usage {
        let prompt = if self.prompt == 0 { prompt } else { self.prompt };
        Usage {
            prompt,
            completion: self.completion,
            cached: self.cached.min(prompt),
            reasoning: self.reasoning.min(self.completion),
        }
    }

    /// OpenAI's `usage` object.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"prompt_tokens\":");
        json::number(out, self.prompt);
        out.extend_from_slice(b",\"completion_tokens\":");
        json::number(out, self.completion);
        out.extend_from_slice(b",\"total_tokens\":");
        json::number(out, self.prompt + self.completion);
        out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
        json::number(out, self.cached);
        out.extend_from_slice(b"},\"completion_tokens_details\":{\"reasoning_tokens\":");
        json::number(out, self.reasoning);
        out.extend_from_slice(b"}}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_share_the_prompt_and_add_up_the_rest() {
        let mut total = Usage::default();
        let first = Usage { prompt: 10, completion: 3, cached: 4, reasoning: 2 };
        let second = Usage { prompt: 10, completion: 5, cached: 9, reasoning: 0 };
        total.advance(&Usage::default(), &first);
        total.advance(&Usage::default(), &second);
        total.advance(&first, &Usage { completion: 4, ..first });
        assert_eq!(total, Usage { prompt: 10, completion: 9, cached: 9, reasoning: 2 });
    }

    #[test]
    fn no_part_is_larger_than_its_whole() {
        let odd = Usage { prompt: 0, completion: 1, cached: 50, reasoning: 7 };
        assert_eq!(odd.settled(20), Usage { prompt: 20, completion: 1, cached: 20, reasoning: 1 });
        let mut out = Vec::new();
        odd.settled(20).write(&mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["total_tokens"], 21);
        assert_eq!(value["prompt_tokens_details"]["cached_tokens"], 20);
    }
}
