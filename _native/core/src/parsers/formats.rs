//! The tool call formats, as the models' chat templates write them.

use super::syntax::{Bare, Body, Frame, Frames, Head, Name, Parameters, Syntax, ToolFormat, Trim};

fn whole(name: &str) -> &str {
    name
}

/// `functions.NAME:IDX`, as Kimi writes it; both ends may be missing.
fn counted(name: &str) -> &str {
    let name = name.strip_prefix("functions.").unwrap_or(name);
    match name.rsplit_once(':') {
        Some((name, index)) if index.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

const fn name(ends: &'static [&'static str], stops: &'static [&'static str]) -> Name {
    Name { ends, stops, clean: whole }
}

/// JSON calls in a pair of markers.
const fn json_frame(open: &'static [&'static str], close: &'static [&'static str]) -> Frame {
    Frame { open, call: &[], lone: false, head: Head::Json, body: Body::Json, end: &[], close }
}

const fn format(
    name: &'static str,
    aliases: &'static [&'static str],
    tokens: &'static [&'static str],
    syntax: Syntax,
) -> ToolFormat {
    ToolFormat { name, aliases, tokens, syntax }
}

const fn framed(frames: &'static [Frame]) -> Syntax {
    Syntax::Frames(Frames { frames, bare: Bare::No, erase: &[] })
}

/// `<function=NAME> <parameter=KEY> VALUE </parameter> … </function>` in `<tool_call>`, which models forget.
const XML: Frame = Frame {
    open: &["<tool_call>"],
    call: &["<function="],
    lone: true,
    head: Head::Name(name(&[">"], &[])),
    body: Body::Parameters(Parameters {
        open: &["<parameter="],
        key_end: &[">"],
        attributes: false,
        value_open: &[],
        close: &["</parameter>"],
        stops: &["<parameter=", "</function>"],
        trim: Trim::Newline,
        json: false,
    }),
    end: &["</function>"],
    close: &["</tool_call>"],
};

const GLM_PARAMETERS: Body = Body::Parameters(Parameters {
    open: &["<arg_key>"],
    key_end: &["</arg_key>"],
    attributes: false,
    value_open: &["<arg_value>"],
    close: &["</arg_value>"],
    stops: &[],
    trim: Trim::Nothing,
    json: false,
});

/// Before 4.7 a newline ends the name; both write what the other reads.
const GLM: Frame = Frame {
    open: &["<tool_call>"],
    call: &[],
    lone: false,
    head: Head::Name(name(&["\n"], &["<arg_key>", "</tool_call>"])),
    body: GLM_PARAMETERS,
    end: &[],
    close: &["</tool_call>"],
};

const ATTRIBUTES: Parameters = Parameters {
    open: &["<parameter name=\""],
    key_end: &["\""],
    attributes: true,
    value_open: &[],
    close: &["</parameter>"],
    stops: &[],
    trim: Trim::Nothing,
    json: false,
};

pub static FORMATS: &[ToolFormat] = &[
    format("passthrough", &["none"], &[], Syntax::None),
    format("json", &[], &[], Syntax::Frames(Frames { frames: &[], bare: Bare::Json, erase: &[] })),
    format(
        "mistral",
        &["mistral_v11", "devstral"],
        &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        framed(&[Frame {
            open: &["[TOOL_CALLS]"],
            call: &[],
            lone: false,
            head: Head::Either(name(&["[ARGS]", "[CALL_ID]"], &["{"])),
            body: Body::Json,
            end: &[],
            close: &[],
        }]),
    ),
    format(
        "qwen",
        &["qwen25", "hermes"],
        &["<tool_call>", "</tool_call>"],
        framed(&[json_frame(&["<tool_call>"], &["</tool_call>"])]),
    ),
    format(
        "qwen_coder",
        &["qwen3_coder", "qwen_xml", "step3p5"],
        &["<tool_call>", "</tool_call>"],
        framed(&[XML]),
    ),
    format(
        "nemotron",
        &[],
        &["<tool_call>", "</tool_call>", "<TOOLCALL>", "</TOOLCALL>"],
        framed(&[XML, json_frame(&["<TOOLCALL>"], &["</TOOLCALL>"])]),
    ),
    format(
        "pythonic",
        &["llama4"],
        &["<|python_start|>", "<|python_end|>"],
        Syntax::Frames(Frames {
            frames: &[],
            bare: Bare::Python,
            erase: &["<|python_start|>", "<|python_end|>"],
        }),
    ),
    format(
        "llama",
        &["llama3"],
        &["<|python_tag|>"],
        Syntax::Frames(Frames {
            frames: &[json_frame(&["<|python_tag|>"], &[])],
            bare: Bare::JsonFirst,
            erase: &[],
        }),
    ),
    format(
        "deepseek_v3",
        &["deepseek", "deepseekv3"],
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        framed(&[Frame {
            open: &["<｜tool▁calls▁begin｜>"],
            call: &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
            lone: true,
            head: Head::Name(name(&["\n```json"], &["{"])),
            body: Body::Json,
            end: &["<｜tool▁call▁end｜>", "```"],
            close: &["<｜tool▁calls▁end｜>"],
        }]),
    ),
    format(
        "deepseek_v31",
        &["deepseek31", "deepseekv31"],
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        framed(&[Frame {
            open: &["<｜tool▁calls▁begin｜>"],
            call: &["<｜tool▁call▁begin｜>"],
            lone: true,
            head: Head::Name(name(&["<｜tool▁sep｜>"], &[])),
            body: Body::Json,
            end: &["<｜tool▁call▁end｜>"],
            close: &["<｜tool▁calls▁end｜>"],
        }]),
    ),
    format(
        "deepseek_v32",
        &["deepseek32", "deepseekv32", "deepseek_v4", "deepseekv4"],
        &["｜DSML｜"],
        framed(&[
            Frame {
                open: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
                call: &["<｜DSML｜invoke name=\""],
                lone: true,
                head: Head::Name(name(&["\">", "\" >"], &[])),
                body: Body::Parameters(Parameters {
                    open: &["<｜DSML｜parameter name=\"", "<parameter name=\""],
                    close: &["</｜DSML｜parameter>", "</parameter>"],
                    json: true,
                    ..ATTRIBUTES
                }),
                end: &["</｜DSML｜invoke>", "</invoke>"],
                close: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "</function_calls>"],
            },
            Frame {
                open: &["<function_calls>"],
                call: &["<invoke name=\"", "<｜DSML｜invoke name=\""],
                lone: false,
                head: Head::Name(name(&["\">", "\" >"], &[])),
                body: Body::Parameters(Parameters {
                    open: &["<｜DSML｜parameter name=\"", "<parameter name=\""],
                    close: &["</｜DSML｜parameter>", "</parameter>"],
                    json: true,
                    ..ATTRIBUTES
                }),
                end: &["</｜DSML｜invoke>", "</invoke>"],
                close: &["</｜DSML｜function_calls>", "</function_calls>"],
            },
        ]),
    ),
    format("glm45", &["glm", "glm45_moe"], &["<tool_call>", "</tool_call>"], framed(&[GLM])),
    format("glm47", &["glm47_moe"], &["<tool_call>", "</tool_call>"], framed(&[GLM])),
    format(
        "kimi_k2",
        &["kimik2"],
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
        framed(&[Frame {
            open: &["<|tool_calls_section_begin|>"],
            call: &["<|tool_call_begin|>"],
            lone: true,
            head: Head::Name(Name { ends: &["<|tool_call_argument_begin|>"], stops: &[], clean: counted }),
            body: Body::Json,
            end: &["<|tool_call_end|>"],
            close: &["<|tool_calls_section_end|>"],
        }]),
    ),
    format(
        "minimax_m2",
        &["minimax-m2", "minimax"],
        &["<minimax:tool_call>", "</minimax:tool_call>"],
        framed(&[Frame {
            open: &["<minimax:tool_call>"],
            call: &["<invoke name=\""],
            lone: false,
            head: Head::Name(name(&["\">", "\" >"], &[])),
            body: Body::Parameters(ATTRIBUTES),
            end: &["</invoke>"],
            close: &["</minimax:tool_call>"],
        }]),
    ),
    format(
        "step3",
        &[],
        &[
            "<｜tool_calls_begin｜>",
            "<｜tool_call_begin｜>",
            "<｜tool_sep｜>",
            "<｜tool_call_end｜>",
            "<｜tool_calls_end｜>",
        ],
        framed(&[Frame {
            open: &["<｜tool_calls_begin｜>"],
            call: &["<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\""],
            lone: false,
            head: Head::Name(name(&["\">", "\" >"], &[])),
            body: Body::Parameters(Parameters {
                open: &["<steptml:parameter name=\""],
                close: &["</steptml:parameter>"],
                trim: Trim::Blanks,
                ..ATTRIBUTES
            }),
            end: &["</steptml:invoke>", "<｜tool_call_end｜>"],
            close: &["<｜tool_calls_end｜>"],
        }]),
    ),
    format(
        "cohere",
        &["cohere_command4", "cohere_cmd"],
        &[
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ],
        Syntax::Frames(Frames {
            frames: &[json_frame(&["<|START_ACTION|>"], &["<|END_ACTION|>"])],
            bare: Bare::No,
            erase: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        }),
    ),
    format("gpt-oss", &["gpt_oss", "harmony"], super::harmony::TOKENS, Syntax::Harmony),
];

/// A format by its name, or by another name it has.
pub fn tool_format(name: &str) -> Option<&'static ToolFormat> {
    FORMATS.iter().find(|format| format.name == name || format.aliases.contains(&name))
}

/// What a format is called in settings, without its other names.
pub fn tool_format_names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}
