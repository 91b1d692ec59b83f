//! What the parts of preparing a chat cost.
//!
//! `prompt_cost PATH` (a model's folder) times, for a conversation of one long system prompt and a growing
//! number of turns: the rendering of the template, the encoding of its prompt without and with a warm prompt cache,
//! and the whole preparation without and with. Then the same prompt sent as raw text, with the special tokens that
//! the template wrote and without them.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wsgi_router_core::prepare::{prepare, render_job};
use wsgi_router_core::template::{ChatTemplate, Limits};
use wsgi_router_core::tokenizer::Tokenizer;

const TURNS: [usize; 4] = [1, 4, 10, 20];
const SYSTEM_WORDS: usize = 1000;
const TURN_WORDS: usize = 100;

/// So many conversations take turns, with one system prompt: words and caches are as cold as under a server.
const CONVERSATIONS: u64 = 64;
const CACHE: usize = 16 << 20;
const CHATML: &str = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}";

fn main() {
    let path = std::env::args().nth(1).expect("usage: prompt_cost PATH");
    let tokenizer = Tokenizer::load(Path::new(&path)).expect("a tokenizer");
    let mut cached = Tokenizer::load(Path::new(&path)).expect("a tokenizer");
    let source = tokenizer.chat_template_source().unwrap_or(CHATML).to_string();
    let template = ChatTemplate::new(&source, tokenizer.special_tokens()).expect("a template that compiles");
    println!("{tokenizer:?}");
    for turns in TURNS {
        let jobs: Vec<Vec<u8>> = (0..CONVERSATIONS).map(|seed| job(seed, turns)).collect();
        let render =
            |job: &[u8]| render_job(&tokenizer, Some(&template), job, &Limits::default()).expect("a prompt");
        let prompts: Vec<String> = jobs.iter().map(|job| render(job)).collect();
        let tokens: usize =
            prompts.iter().map(|prompt| tokenizer.encode(prompt, false).expect("ids").len()).sum();
        let rendering = time(&jobs, |job| {
            black_box(render(job));
        });
        let encoding = time(&prompts, |prompt| {
            black_box(tokenizer.encode(prompt, false).expect("ids"));
        });
        let whole = time(&jobs, |job| {
            black_box(prepare(&tokenizer, Some(&template), job, &Limits::default()).expect("a request"));
        });
        cached.cache_prompts(CACHE);
        let hit = time(&prompts, |prompt| {
            black_box(cached.encode_prompt(prompt, false).expect("ids"));
        });
        println!(
            "{turns:3} turns, {:6} tokens, {:7} bytes: parse and render {rendering:?}, encode {encoding:?}, \
             cached {hit:?}, prepare {whole:?}",
            tokens / jobs.len(),
            prompts[0].len()
        );
        // Without these the special tokens are text like any other.
        let plain = |prompt: &String| prompt.replace(['<', '>'], "");
        for (name, prompts) in [("raw", prompts.clone()), ("plain", prompts.iter().map(plain).collect())] {
            let jobs: Vec<Vec<u8>> = prompts.iter().map(|prompt| raw_job(prompt)).collect();
            let encoding = time(&prompts, |prompt| {
                black_box(tokenizer.encode(prompt, true).expect("ids"));
            });
            let [whole, hit] = [&tokenizer, &cached].map(|tokenizer| {
                time(&jobs, |job| {
                    black_box(prepare(tokenizer, None, job, &Limits::default()).expect("a request"));
                })
            });
            println!("           {name}: encode {encoding:?}, prepare {whole:?}, with the cache {hit:?}");
        }
    }
}

fn raw_job(prompt: &str) -> Vec<u8> {
    json!({"prompt": prompt, "context_length": 131072}).to_string().into()
}

/// The median of several rounds over `items`, for one of them.
fn time<T>(items: &[T], mut run: impl FnMut(&T)) -> Duration {
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let start = Instant::now();
            items.iter().for_each(&mut run);
            start.elapsed() / items.len() as u32
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn job(seed: u64, turns: usize) -> Vec<u8> {
    let mut messages: Vec<Value> = vec![json!({"role": "system", "content": Words(7).text(SYSTEM_WORDS)})];
    let mut words = Words(seed + 100);
    for turn in 0..turns {
        messages.push(json!({"role": "user", "content": words.text(TURN_WORDS)}));
        if turn + 1 < turns {
            messages.push(json!({"role": "assistant", "content": words.text(TURN_WORDS)}));
        }
    }
    json!({"messages": messages, "add_generation_prompt": true, "context_length": 131072}).to_string().into()
}

/// Prose-like text with numbers, punctuation and rare words.
struct Words(u64);

impl Words {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn text(&mut self, count: usize) -> String {
        const COMMON: [&str; 24] = [
            "the", "customer", "answers", "should", "be", "short", "and", "polite", "when", "an", "order",
            "number", "is", "given", "look", "up", "its", "state", "before", "replying", "with", "details",
            "of", "delivery",
        ];
        let mut text = String::new();
        for n in 0..count {
            match self.below(12) {
                0 => text.push_str(&format!("{}", self.below(100_000))),
                1 => (0..3 + self.below(7)).for_each(|_| text.push((b'a' + self.below(26) as u8) as char)),
                _ => text.push_str(COMMON[self.below(24) as usize]),
            }
            text.push_str(if n % 13 == 12 {
                ".\n"
            } else if n % 7 == 6 {
                ", "
            } else {
                " "
            });
        }
        text
    }
}
