//! Renders chat templates for a comparison with transformers.
//!
//! Reads one JSON object a line: `{"template", "special_tokens", "messages", "tools", "documents",
//! "kwargs", "add_generation_prompt", "continue_final_message", "now", "fuel", "repeat"}`; prints one a
//! line: `{"text"}` or `{"error", "code"}`, with the `micros` a rendering took (over `repeat` of them) and
//! the `forms` of messages the template reads. A template is compiled once.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Write};
use std::time::Instant;

use serde_json::{Map, Value, json};
use wsgi_router_core::error::Result;
use wsgi_router_core::template::{ChatTemplate, Content, Limits, RenderInput};

type Compiled = HashMap<(String, String), Result<ChatTemplate>>;

fn main() -> io::Result<()> {
    let mut compiled = Compiled::new();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", run(&case, &mut compiled))?;
    }
    Ok(())
}

fn run(case: &Value, compiled: &mut Compiled) -> Value {
    let source = case["template"].as_str().unwrap_or_default();
    let tokens = special_tokens(&case["special_tokens"]);
    let template = compiled
        .entry((source.to_owned(), format!("{tokens:?}")))
        .or_insert_with(|| ChatTemplate::new(source, &tokens));
    let template = match template {
        Ok(template) => template,
        Err(error) => return json!({"error": error.message, "code": format!("{:?}", error.code)}),
    };
    let no_kwargs = Map::new();
    let given = |name: &str| case.get(name).filter(|value| !value.is_null());
    let flag = |name: &str| case[name].as_bool().unwrap_or(false);
    let input = RenderInput {
        messages: &case["messages"],
        tools: given("tools"),
        documents: given("documents"),
        kwargs: case["kwargs"].as_object().unwrap_or(&no_kwargs),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        now: case["now"].as_i64(),
    };
    let mut limits = Limits::default();
    if let Some(fuel) = case["fuel"].as_u64() {
        limits.fuel = fuel;
    }
    let start = Instant::now();
    let repeat = case["repeat"].as_u64().unwrap_or(1).max(1);
    let mut result = template.render(&input, &limits);
    for _ in 1..repeat {
        result = template.render(&input, &limits);
    }
    let micros = start.elapsed().as_micros() as f64 / repeat as f64;
    match result {
        Ok(text) => json!({"text": text, "micros": micros, "forms": forms(template)}),
        Err(error) => {
            json!({"error": error.message, "code": format!("{:?}", error.code), "micros": micros, "forms": forms(template)})
        }
    }
}

fn forms(template: &ChatTemplate) -> Value {
    let forms = template.forms();
    let content = |content: Content| json!({"parts": content.parts, "text": content.text});
    json!({
        "system": content(forms.system),
        "user": content(forms.user),
        "assistant": content(forms.assistant),
        "tool": content(forms.tool),
        "arguments_as_dict": forms.arguments_as_dict,
        "beside_calls": format!("{:?}", forms.beside_calls),
        "missing": format!("{:?}", forms.missing),
        "developer": forms.developer,
    })
}

fn special_tokens(tokens: &Value) -> BTreeMap<String, String> {
    let pairs = tokens.as_object().into_iter().flatten();
    pairs.filter_map(|(name, token)| Some((name.clone(), token.as_str()?.to_owned()))).collect()
}
