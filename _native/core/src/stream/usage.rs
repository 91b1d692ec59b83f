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
    /// Takes one choice's change from `before` to `after` into the counts of its prompt. The choices share it,
    /// so its counts are the largest seen; completion and reasoning are sums.
    fn advance(&mut self, before: &Usage, after: &Usage) {
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

    fn add(&mut self, other: &Usage) {
        self.prompt += other.prompt;
        self.completion += other.completion;
        self.cached += other.cached;
        self.reasoning += other.reasoning;
    }

    fn subtract(&mut self, other: &Usage) {
        self.prompt -= other.prompt;
        self.completion -= other.completion;
        self.cached -= other.cached;
        self.reasoning -= other.reasoning;
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

/// Counts of a response that answers one prompt or several.
#[derive(Debug)]
pub struct Total {
    /// For each prompt the worker's counts, and the router's count of the prompt.
    prompts: Vec<(Usage, u64)>,
    /// Of all prompts, settled.
    sum: Usage,
}

impl Total {
    /// `prompts`: the router's count of each.
    pub fn new(prompts: impl Iterator<Item = u64>) -> Self {
        let prompts: Vec<_> = prompts.map(|tokens| (Usage::default(), tokens)).collect();
        let sum = Usage { prompt: prompts.iter().map(|&(_, tokens)| tokens).sum(), ..Usage::default() };
        Self { prompts, sum }
    }

    /// Takes the change of one choice of a prompt.
    pub fn advance(&mut self, prompt: usize, before: &Usage, after: &Usage) {
        if let [(usage, tokens)] = &mut self.prompts[..] {
            usage.advance(before, after);
            self.sum = usage.settled(*tokens);
            return;
        }
        let (usage, tokens) = &mut self.prompts[prompt];
        self.sum.subtract(&usage.settled(*tokens));
        usage.advance(before, after);
        self.sum.add(&usage.settled(*tokens));
    }

    pub fn sum(&self) -> &Usage {
        &self.sum
    }

    /// The counts of one choice as its client reads them.
    pub fn settled(&self, prompt: usize, usage: &Usage) -> Usage {
        usage.settled(self.prompts[prompt].1)
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
    fn prompts_add_up() {
        let mut total = Total::new([10, 20].into_iter());
        assert_eq!(total.sum().prompt, 30);
        let usage = Usage { prompt: 11, completion: 3, cached: 4, reasoning: 0 };
        total.advance(0, &Usage::default(), &usage);
        total.advance(0, &Usage::default(), &usage);
        assert_eq!(*total.sum(), Usage { prompt: 31, completion: 6, cached: 4, reasoning: 0 });
        total.advance(1, &Usage::default(), &Usage { prompt: 0, completion: 1, cached: 99, reasoning: 2 });
        assert_eq!(*total.sum(), Usage { prompt: 31, completion: 7, cached: 24, reasoning: 1 });
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
