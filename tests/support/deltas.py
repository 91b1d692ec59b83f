"""What a client makes of a stream of chat chunks, and the contract's rules for its form."""

from __future__ import annotations

import json
from typing import Any


def chunks(stream: str) -> list[dict[str, Any]]:
    """The events of a whole stream, which ends as it must."""
    blocks = stream.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks[:-2])
    return [json.loads(block[6:]) for block in blocks[:-2]]


def add(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds a delta to the message so far, as a client does; ids and names are checked to come once."""
    for key, value in delta.items():
        assert value is not None
        if key == "tool_calls":
            calls = whole.setdefault(key, [])
            for part in value:
                if part["index"] == len(calls):
                    assert part["id"]
                    assert part["type"] == "function"
                    assert part["function"]["name"]
                    calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
                    calls[-1]["function"].setdefault("arguments", "")
                else:
                    assert part["index"] == len(calls) - 1
                    assert part.keys() == {"index", "function"}
                    assert part["function"].keys() == {"arguments"}
                    assert part["function"]["arguments"]
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        elif key == "function_call":
            function = whole.setdefault(key, {"name": "", "arguments": ""})
            assert not (function["name"] and "name" in value)
            function["name"] += value.get("name", "")
            function["arguments"] += value.get("arguments", "")
        else:
            whole[key] = whole.get(key, "") + value


def gather(events: list[dict[str, Any]], index: int = 0) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Message, last choice and logprobs of a choice."""
    own = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    assert own[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
    assert own[-1]["delta"] == {}
    assert all(choice["delta"] and "role" not in choice["delta"] for choice in own[1:-1])
    message: dict[str, Any] = {}
    scores: list[Any] = []
    for choice in own:
        add(message, choice["delta"])
        if choice.get("logprobs"):
            assert choice["logprobs"]["refusal"] is None
            assert choice["logprobs"]["content"]
            scores += choice["logprobs"]["content"]
    return message, own[-1], scores
