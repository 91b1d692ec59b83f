//! Which formats a model speaks, by its name.

use super::formats::tool_format;
use super::reasoning::reasoning_format;
use super::{ReasoningFormat, ToolFormat};

/// Parts of model names, in lower case with `-` for other separators; tool format; reasoning format. The first
/// that occurs counts.
const MODELS: &[(&str, Option<&str>, Option<&str>)] = &[
    ("gpt-oss", Some("gpt-oss"), Some("gpt-oss")),
    ("deepseek-r1-distill", None, Some("deepseek_r1")),
    ("deepseek-r1", Some("deepseek_v3"), Some("deepseek_r1")),
    ("deepseek-v4", Some("deepseek_v32"), Some("base")),
    ("deepseek-v3.2-exp", Some("deepseek_v31"), Some("base")),
    ("deepseek-v3.2", Some("deepseek_v32"), Some("base")),
    ("deepseek-v3.1", Some("deepseek_v31"), Some("base")),
    ("deepseek-v3", Some("deepseek_v3"), None),
    ("qwen3-coder", Some("qwen_coder"), None),
    ("qwen3.", Some("qwen_coder"), Some("qwen3")),
    ("qwq", Some("qwen"), Some("deepseek_r1")),
    ("qwen3-thinking", Some("qwen"), Some("qwen3_thinking")),
    ("thinking-2507", Some("qwen"), Some("qwen3_thinking")),
    ("qwen3", Some("qwen"), Some("qwen3")),
    ("qwen", Some("qwen"), None),
    ("hermes", Some("qwen"), None),
    ("glm-4.5", Some("glm45"), Some("glm45")),
    ("glm-4.6", Some("glm45"), Some("glm45")),
    ("glm-4.7", Some("glm47"), Some("glm45")),
    ("glm-5", Some("glm47"), Some("glm45")),
    ("kimi-k2-thinking", Some("kimi_k2"), Some("kimi_k2")),
    ("kimi-k2.5", Some("kimi_k2"), Some("base")),
    ("kimi-k2", Some("kimi_k2"), Some("kimi")),
    ("kimi", None, Some("kimi")),
    ("minimax-m2", Some("minimax_m2"), Some("minimax")),
    ("step-3.5", Some("qwen_coder"), Some("step3")),
    ("step3.5", Some("qwen_coder"), Some("step3")),
    ("step-3", Some("step3"), Some("step3")),
    ("step3", Some("step3"), Some("step3")),
    ("command-r", Some("cohere"), Some("cohere")),
    ("command-a", Some("cohere"), Some("cohere")),
    ("c4ai-command", Some("cohere"), Some("cohere")),
    ("nemotron-nano-9b-v2", Some("nemotron"), Some("nemotron")),
    ("nemotron-nano", Some("nemotron"), Some("nemotron")),
    ("nemotron-3", Some("nemotron"), Some("nemotron")),
    ("nemotron-super", Some("nemotron"), Some("nemotron")),
    ("nano-v3", Some("nemotron"), Some("nemotron")),
    ("llama-4", Some("pythonic"), None),
    ("llama4", Some("pythonic"), None),
    ("llama-3", Some("llama"), None),
    ("llama3", Some("llama"), None),
    ("magistral", Some("mistral"), Some("mistral")),
    ("reasoning-2512", Some("mistral"), Some("mistral")),
    ("mixtral", Some("mistral"), None),
    ("mistral", Some("mistral"), None),
    ("ministral", Some("mistral"), None),
    ("devstral", Some("mistral"), None),
];

/// The formats of a model, by its name or path; None where the name says nothing.
pub fn detect(model: &str) -> (Option<&'static ToolFormat>, Option<&'static ReasoningFormat>) {
    let separator = |c: char| if matches!(c, '_' | ' ') { '-' } else { c.to_ascii_lowercase() };
    let model: String = model.chars().map(separator).collect();
    match MODELS.iter().find(|(part, ..)| model.contains(part)) {
        Some((_, tools, reasoning)) => (tools.and_then(tool_format), reasoning.and_then(reasoning_format)),
        None => (None, None),
    }
}
