"""Scripted answers: a JSON list of rules, the first that matches a request gives its answer.

A rule is ``{"match": {...}, "times": N, "answer": {...}}``; without ``times`` it never wears out. All keys of
``match`` must hold; an empty one holds always:

=================  ==================================================================================
``any``            true: holds always
``request``        the n-th Generate call, from 1
``input_ids``      these ids stand in the prompt in one piece
``text``           this text stands in the prompt (sent as original_text, or decoded by the tokenizer)
``request_id``     the request's id begins so
``index``          which of the ``n`` samples
=================  ==================================================================================

``answer`` has at most one source of ids, how they leave, how it ends, and at most one fault:

=====================  ==============================================================================
``text``               tokenized (needs the tokenizer), then the first EOS id if there is one
``token_ids``          given as they are
``echo``, ``random``   the prompt's ids; this many pseudo-random ids
``chunks``             tokens in each step, the list repeated to the end
``finish_reason``      "stop", "length" or "abort" after the last id
``matched_token_id``   id named as the one that stopped it; ``matched_stop``: the word
``free``               true: neither the request's limits nor its stop ids apply
``ttft_ms``            milliseconds to the first token; ``itl_ms``: between tokens
``delays_ms``          milliseconds before each step, instead; the last one is used for the rest
``cached_tokens``      reported instead of the cache's own figure; ``reasoning_tokens`` likewise
``error``              {"status": "UNAVAILABLE", "message": …, "after_tokens": N}
``abort``              {"after_tokens": N}: the scheduler gives it up, with finish_reason "abort"
``hang``               {"after_tokens": N}: nothing more comes
``garbage``            {"hex": …, "after_tokens": N}: bytes that are no message, then the rest
``no_complete``        {"after_tokens": N}: the stream ends well, without a Complete
``exit``               {"after_tokens": N}: the process is gone
=====================  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from wsgi_router.worker_api.engine import GenerationRequest

FAULTS = ("error", "abort", "hang", "garbage", "no_complete", "exit")
SOURCES = ("text", "token_ids", "echo", "random")
MATCH_KEYS = {"any", "request", "input_ids", "text", "request_id", "index"}
ANSWER_KEYS = {
    *FAULTS,
    *SOURCES,
    "chunks",
    "finish_reason",
    "matched_token_id",
    "matched_stop",
    "free",
    "ttft_ms",
    "itl_ms",
    "delays_ms",
    "cached_tokens",
    "reasoning_tokens",
}
_DETAILS = {"error": ("status", "message"), "garbage": ("hex",)}
FINISH_REASONS = ("stop", "length", "abort")


class ScriptError(ValueError):
    """The script is wrong; the message says which rule and key."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, once ``after_tokens`` tokens have left."""

    kind: str
    after_tokens: int = 0
    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    message: str = ""
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rule says; None and empty: the simulator's own way."""

    token_ids: tuple[int, ...] | None = None
    echo: bool = False
    random: int | None = None
    chunks: tuple[int, ...] = ()
    finish_reason: str | None = None
    matched_token_id: int | None = None
    matched_stop: str | None = None
    free: bool = False
    ttft: float | None = None
    itl: float | None = None
    delays: tuple[float, ...] = ()
    cached_tokens: int | None = None
    reasoning_tokens: int = 0
    fault: Fault | None = None


@dataclass(slots=True)
class Rule:
    """A match, an answer, and how often it may still be used (None: always)."""

    match: dict[str, Any]
    answer: Answer
    left: int | None = None

    def holds(self, request: GenerationRequest, number: int, prompt: Callable[[], str]) -> bool:
        """Whether the rule speaks of this request, the ``number``-th; ``prompt`` gives its text."""
        if self.left == 0:
            return False
        wanted = self.match
        return (
            wanted.get("request", number) == number
            and wanted.get("index", request.index) == request.index
            and request.request_id.startswith(wanted.get("request_id", ""))
            and ("input_ids" not in wanted or _contains(request.input_ids, wanted["input_ids"]))
            and ("text" not in wanted or wanted["text"] in prompt())
            and wanted.get("any", True) is True
        )


@dataclass(slots=True)
class Script:
    """Rules in order of precedence."""

    rules: list[Rule] = field(default_factory=list)

    def answer(self, request: GenerationRequest, number: int, prompt: Callable[[], str]) -> Answer | None:
        """The first matching rule's answer, which counts as one use of it."""
        for rule in self.rules:
            if rule.holds(request, number, prompt):
                if rule.left is not None:
                    rule.left -= 1
                return rule.answer
        return None


def load_script(path: Path, encode: Callable[[str], list[int]], eos: Sequence[int]) -> Script:
    """Read a script file. Raises ScriptError; ``encode`` tokenizes ``text`` answers."""
    try:
        rules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path}: {error}") from None
    return parse_script(rules, encode, eos)


def parse_script(rules: Any, encode: Callable[[str], list[int]], eos: Sequence[int]) -> Script:
    """Check and convert a decoded script: a list of rules, or an object with the list under "rules"."""
    if isinstance(rules, dict):
        rules = rules.get("rules")
    if not isinstance(rules, list):
        raise ScriptError("a script is a list of rules")
    return Script([_rule(number, rule, encode, eos) for number, rule in enumerate(rules)])


def _rule(number: int, rule: Any, encode: Callable[[str], list[int]], eos: Sequence[int]) -> Rule:
    where = f"rule {number}"
    if not isinstance(rule, dict) or not isinstance(rule.get("answer"), dict):
        raise ScriptError(f"{where}: an object with an answer is wanted")
    _only(rule, {"match", "answer", "times", "comment"}, where)
    match = rule.get("match", {})
    _only(match, MATCH_KEYS, f"{where} match")
    return Rule(match, _answer(rule["answer"], encode, eos, where), rule.get("times"))


def _answer(
    spec: dict[str, Any], encode: Callable[[str], list[int]], eos: Sequence[int], where: str
) -> Answer:
    _only(spec, ANSWER_KEYS, f"{where} answer")
    for group in (SOURCES, FAULTS):
        if sum(key in spec for key in group) > 1:
            raise ScriptError(f"{where}: at most one of {', '.join(group)}")
    finish = spec.get("finish_reason")
    if finish is not None and finish not in FINISH_REASONS:
        raise ScriptError(f"{where}: finish_reason {finish!r} is none of {', '.join(FINISH_REASONS)}")
    if any(size < 1 for size in spec.get("chunks", ())):
        raise ScriptError(f"{where}: chunks must be at least 1")
    ids = spec.get("token_ids")
    if "text" in spec:
        ids = encode(spec["text"]) + list(eos[:1] if finish is None else ())
    return Answer(
        token_ids=None if ids is None else tuple(ids),
        echo=spec.get("echo", False),
        random=spec.get("random"),
        chunks=tuple(spec.get("chunks", ())),
        finish_reason=finish,
        matched_token_id=spec.get("matched_token_id"),
        matched_stop=spec.get("matched_stop"),
        free=spec.get("free", False),
        ttft=_seconds(spec.get("ttft_ms")),
        itl=_seconds(spec.get("itl_ms")),
        delays=tuple(delay / 1000 for delay in spec.get("delays_ms", ())),
        cached_tokens=spec.get("cached_tokens"),
        reasoning_tokens=spec.get("reasoning_tokens", 0),
        fault=_fault(spec, where),
    )


def _fault(spec: dict[str, Any], where: str) -> Fault | None:
    kind = next((key for key in FAULTS if spec.get(key)), None)
    if kind is None:
        return None
    details = {} if spec[kind] is True else spec[kind]
    _only(details, {"after_tokens", *_DETAILS.get(kind, ())}, f"{where} {kind}")
    status = details.get("status", "INTERNAL")
    if status not in grpc.StatusCode.__members__:
        raise ScriptError(f"{where}: {status!r} is no gRPC status")
    return Fault(
        kind=kind,
        after_tokens=details.get("after_tokens", 0),
        status=grpc.StatusCode[status],
        message=details.get("message", f"scripted {kind}"),
        data=bytes.fromhex(details.get("hex", "ffffffff")),
    )


def _only(spec: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(spec) - known):
        raise ScriptError(f"{where}: unknown {', '.join(unknown)}")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    size = len(part)
    return any(list(ids[at : at + size]) == list(part) for at in range(len(ids) - size + 1))
