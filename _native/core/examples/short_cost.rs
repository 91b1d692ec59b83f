//! What preparing a short chat costs, in the parts that can be told apart.
//!
//! `short_cost PATH` (a model's folder): the rendering of the template (with the reading of the job), the encoding of
//! its prompt, and the whole preparation. Many conversations take turns, so that caches are as warm as under a
//! server that does nothing else. `short_cost PATH ROUNDS` prepares them so many times over: for a profiler.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use wsgi_router_core::prepare::{prepare, render_job};
use wsgi_router_core::template::{ChatTemplate, Limits};
use wsgi_router_core::tokenizer::Tokenizer;

const CONVERSATIONS: usize = 64;
const CACHE: usize = 16 << 20;
const REPEATS: usize = 400;
const CHATML: &str = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}";

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: short_cost PATH [ROUNDS]");
    let rounds: Option<usize> = args.next().map(|rounds| rounds.parse().expect("a number"));
    let mut tokenizer = Tokenizer::load(Path::new(&path)).expect("a tokenizer");
    tokenizer.cache_prompts(CACHE);
    let source = tokenizer.chat_template_source().unwrap_or(CHATML).to_string();
    let template = ChatTemplate::new(&source, tokenizer.special_tokens()).expect("a template that compiles");
    let limits = Limits::default();
    let jobs: Vec<Vec<u8>> = (0..CONVERSATIONS).map(job).collect();
    let render = |job: &Vec<u8>| render_job(&tokenizer, Some(&template), job, &limits).expect("a prompt");
    let whole = |job: &Vec<u8>| {
        black_box(prepare(&tokenizer, Some(&template), job, &limits).expect("a request"));
    };
    if let Some(rounds) = rounds {
        (0..rounds).for_each(|_| jobs.iter().for_each(whole));
        return;
    }
    let prompts: Vec<String> = jobs.iter().map(render).collect();
    let rendering = time(&jobs, |job| drop(black_box(render(job))));
    let encoding = time(&prompts, |prompt| {
        black_box(tokenizer.encode_prompt(prompt, false).expect("ids"));
    });
    let whole = time(&jobs, whole);
    println!(
        "{tokenizer:?}: {} bytes, read and render {rendering:.2} µs, encode {encoding:.2}, whole {whole:.2}",
        prompts[0].len()
    );
}

/// The median of many rounds over `items`, in microseconds for one of them.
fn time<T>(items: &[T], mut run: impl FnMut(&T)) -> f64 {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            items.iter().for_each(&mut run);
            start.elapsed().as_secs_f64() * 1e6 / items.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// What Python makes of a short request.
fn job(number: usize) -> Vec<u8> {
    json!({
        "messages": [{"role": "system", "content": "You are a helpful assistant."},
                     {"role": "user", "content": format!("Order {number}: where is it now, and who has it?")}],
        "documents": null, "chat_template_kwargs": {}, "add_generation_prompt": true,
        "continue_final_message": false, "context_length": 32768, "max_tokens": 64, "stream": false,
        "sampling": {"temperature": 0.7, "top_p": 0.9},
    })
    .to_string()
    .into()
}
