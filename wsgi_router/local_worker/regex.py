"""Turns a regular expression into the grammar tree: the whole output has to match it.

Python's own parser reads the pattern. What a context-free grammar cannot say (look-around, back
references, word boundaries, possessive groups) is refused; anchors are allowed at the two ends.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any, Final

from wsgi_router.local_worker.grammar import (
    MAX_REPEAT,
    MAX_TEXT,
    Alt,
    Chars,
    GrammarError,
    Node,
    Repeat,
    Rules,
    Seq,
    chars,
)

# Modules that the types of the standard library do not name.
_PARSER: Final[Any] = importlib.import_module("re._parser")
_CONSTANTS: Final[Any] = importlib.import_module("re._constants")

# ASCII meanings, as the engines behind SGLang give them.
_CATEGORIES: dict[str, tuple[tuple[int, int], ...]] = {
    "DIGIT": ((0x30, 0x39),),
    "WORD": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "SPACE": ((0x09, 0x0D), (0x20, 0x20)),
}


def regex_rules(pattern: str) -> Rules:
    """A grammar whose root is ``pattern``; GrammarError for what it cannot express."""
    if len(pattern) > MAX_TEXT:
        raise GrammarError(f"the pattern is longer than {MAX_TEXT} characters")
    try:
        tree = _PARSER.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(str(error)) from error
    if tree.state.flags & ~re.UNICODE:
        raise GrammarError("flags in the pattern are not supported")
    parsed = list(tree)
    if parsed and str(parsed[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        del parsed[0]
    if parsed and str(parsed[-1][1]) in ("AT_END", "AT_END_STRING"):
        del parsed[-1]
    return {"root": _sequence(parsed)}


def _sequence(parsed: Iterable[tuple[Any, Any]]) -> Node:
    return Seq(tuple(_node(str(op), value) for op, value in parsed))


def _node(op: str, value: Any) -> Node:
    match op:
        case "LITERAL":
            return Chars(((value, value),))
        case "NOT_LITERAL":
            return chars([(value, value)], negated=True)
        case "ANY":
            return chars([(0x0A, 0x0A)], negated=True)
        case "IN":
            return _char_class(value)
        case "BRANCH":
            return Alt(tuple(_sequence(branch) for branch in value[1]))
        case "SUBPATTERN":
            _group, add_flags, del_flags, inner = value
            if add_flags or del_flags:
                raise GrammarError("flags in the pattern are not supported")
            return _sequence(inner)
        case "MAX_REPEAT" | "MIN_REPEAT":
            low, high, inner = value
            if low > MAX_REPEAT or (high is not _CONSTANTS.MAXREPEAT and high > MAX_REPEAT):
                raise GrammarError(f"a repetition beyond {MAX_REPEAT}")
            unbounded = high is _CONSTANTS.MAXREPEAT
            return Repeat(_sequence(inner), int(low), None if unbounded else int(high))
        case _:
            name = str(value) if op == "AT" else op
            raise GrammarError(f"{name.lower()} is not supported in a pattern")


def _char_class(members: Iterable[tuple[Any, Any]]) -> Chars:
    ranges: list[tuple[int, int]] = []
    negated = False
    for op, value in members:
        match str(op):
            case "NEGATE":
                negated = True
            case "LITERAL":
                ranges.append((value, value))
            case "RANGE":
                ranges.append(value)
            case "CATEGORY":
                ranges.extend(_category(str(value)))
    return chars(ranges, negated)


def _category(name: str) -> tuple[tuple[int, int], ...]:
    kind = name.removeprefix("CATEGORY_")
    if kind.startswith("NOT_"):
        return chars(_CATEGORIES[kind.removeprefix("NOT_")], negated=True).ranges
    return _CATEGORIES[kind]
