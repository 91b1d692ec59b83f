"""Chat messages: their shape by role, and the form in which chat templates get them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from wsgi_router.schema.decode import bad, missing, unsupported

MAX_MESSAGES: Final = 10_000
"""Checking a message takes some microseconds, in which the process does nothing else."""

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Part(msgspec.Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = ""


class ToolCall(msgspec.Struct):
    function: FunctionCall | None = None
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct):
    """A message as clients send it. Further keys are left to the chat template."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None


_PART_KEYS: Final = {"text": "text", "refusal": "refusal"}
_MEDIA_PARTS: Final = frozenset(
    {"image_url", "input_audio", "audio_url", "video_url", "file", "image", "video"}
)


def check_count(messages: object) -> None:
    """Refuses more messages than can be checked at once; before they are converted."""
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise bad("messages", f"At most {MAX_MESSAGES} messages are allowed, not {len(messages)}.")


def check_messages(messages: list[Message]) -> None:
    """Checks what depends on the role. Raises InvalidRequestError."""
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, path: str) -> None:
    if isinstance(message.content, list):
        _check_parts(message, f"{path}.content")
    for number, call in enumerate(message.tool_calls or ()):
        _check_tool_call(call, f"{path}.tool_calls[{number}]")
    _check_only_one(message, path)
    if message.role != "assistant":
        _check_not_assistant(message, path)
    elif message.content is None and not _says_something_else(message):
        raise bad(f"{path}.content", "An assistant message needs 'content', unless it calls a tool.")


def _check_only_one(message: Message, path: str) -> None:
    """What a template could not be given, beside what it gets, is refused."""
    if message.audio is not None:
        raise unsupported(f"{path}.audio", "Earlier answers in audio are not supported.")
    if message.refusal and message.content:
        raise unsupported(f"{path}.refusal", "A message has either 'content' or 'refusal'.")
    if message.function_call is not None and message.tool_calls:
        raise unsupported(f"{path}.function_call", "A message has either 'tool_calls' or 'function_call'.")


def _says_something_else(message: Message) -> bool:
    if message.tool_calls or message.function_call:
        return True
    return any(text is not None for text in (message.refusal, message.reasoning_content, message.reasoning))


def _check_not_assistant(message: Message, path: str) -> None:
    if message.tool_calls:
        raise bad(f"{path}.tool_calls", "Only assistant messages have 'tool_calls'.")
    if message.content is None and message.role != "function":
        raise bad(
            f"{path}.content", f"A {message.role} message needs 'content'.", "missing_required_parameter"
        )
    if message.role == "tool" and message.tool_call_id is None:
        raise bad(
            f"{path}.tool_call_id", "A tool message needs 'tool_call_id'.", "missing_required_parameter"
        )
    if message.role == "function" and not message.name:
        raise bad(f"{path}.name", "A function message needs 'name'.", "missing_required_parameter")


def _check_parts(message: Message, path: str) -> None:
    parts = message.content
    assert isinstance(parts, list)
    if not parts:
        raise bad(path, "A list of content parts must not be empty.")
    for number, part in enumerate(parts):
        where = f"{path}[{number}]"
        if part.type in _MEDIA_PARTS:
            raise unsupported(f"{where}.type", f"Content parts of type '{part.type}' are not supported.")
        key = _PART_KEYS.get(part.type)
        if key is None or (key == "refusal" and message.role != "assistant"):
            raise bad(
                f"{where}.type", f"Unknown content part type '{part.type[:64]}' in a {message.role} message."
            )
        if getattr(part, key) is None:
            raise missing(f"{where}.{key}")


def _check_tool_call(call: ToolCall, path: str) -> None:
    if call.type != "function":
        raise unsupported(f"{path}.type", f"Tool calls of type '{call.type[:64]}' are not supported.")
    if call.function is None:
        raise missing(f"{path}.function")
    if not call.function.name:
        raise bad(f"{path}.function.name", "A call needs the name of a function.")


def for_template(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checked messages in the form that templates know.

    Old names (role function, function_call, refusal, reasoning) are replaced by those of today, and a part
    that refuses by a text, as templates read no other. Keys that say nothing are left out: SDKs send back
    every key that a message may have, and templates ask which are there. Left out is also what the openai
    SDK's parse() put beside an answer: templates that print calls as they are would show it to the model. A
    call that names no arguments has none. The rest is as sent.
    """
    return [message if _is_modern(message) else _modern(message) for message in raw]


_OLD_KEYS: Final = frozenset({"function_call", "refusal", "reasoning"})
_PLAIN_KEYS: Final = frozenset({"role", "content"})
_PARSED: Final = "parsed"
_PARSED_ARGUMENTS: Final = "parsed_arguments"


def _is_modern(message: dict[str, Any]) -> bool:
    if message.keys() == _PLAIN_KEYS and isinstance(message["content"], str):  # nearly all
        return bool(message["role"] != "function")
    if message["role"] == "function" or message.keys() & _OLD_KEYS or _PARSED in message:
        return False
    content = message.get("content")
    if isinstance(content, list) and any(part["type"] == "refusal" for part in content):
        return False
    if any(_is_odd(call["function"]) for call in message.get("tool_calls") or ()):
        return False
    return all(_says_something(key, value) for key, value in message.items())


def _says_something(key: str, value: object) -> bool:
    if key == "tool_calls":
        return bool(value)
    return value is not None or key == "content"


def _modern(message: dict[str, Any]) -> dict[str, Any]:
    message = {key: value for key, value in message.items() if _says_something(key, value)}
    message.pop(_PARSED, None)
    if isinstance(message.get("content"), list):
        message["content"] = [_text_part(part) for part in message["content"]]
    if "tool_calls" in message:
        message["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    if message["role"] == "function":
        message["role"] = "tool"
        if message.get("content") is None:
            message["content"] = ""
    reasoning = message.pop("reasoning", None)
    if reasoning is not None and message.get("reasoning_content") is None:
        message["reasoning_content"] = reasoning
    refusal = message.pop("refusal", None)
    if refusal is not None and not message.get("content"):
        message["content"] = refusal
    call = message.pop("function_call", None)
    if call is not None and not message.get("tool_calls"):
        message["tool_calls"] = [_plain_call({"type": "function", "function": call})]
    return message


def _text_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part


def _is_odd(function: dict[str, Any]) -> bool:
    return _PARSED_ARGUMENTS in function or function.get("arguments") is None


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call without what the SDK's parse() added; one that names no arguments has none."""
    function = {key: value for key, value in call["function"].items() if key != _PARSED_ARGUMENTS}
    if function.get("arguments") is None:
        function["arguments"] = "{}"
    return {**call, "function": function}
