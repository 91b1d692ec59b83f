"""Grammars that constrain sampling: GBNF and regular expressions, checked before llama.cpp sees them.

llama.cpp ends the whole process on a grammar it cannot read and on one that leads where no token can go.
So a client's grammar is parsed into a small tree here, checked (names, left recursion, size, characters the
vocabulary can spell), and written out anew in one plain form; only that text reaches the sampler.
Nodes are equal only to themselves. Every terminal is a set of code point ranges, which makes matching of
characters split over tokens exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_TEXT = 256 * 1024
MAX_RULES = 2_000
MAX_ELEMENTS = 20_000
MAX_REPEAT = 1_000
MAX_DEPTH = 100
LAST_CODE_POINT = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


class GrammarError(ValueError):
    """A grammar that cannot be used; the message says where or why."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character out of ``ranges`` (inclusive code points, sorted, disjoint)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """All items in order; no items: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """One of the items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """``item`` at least ``low`` and at most ``high`` times (None: no end)."""

    item: Node
    low: int
    high: int | None


Node = Chars | Ref | Seq | Alt | Repeat
Rules = dict[str, Node]


def literal(text: str) -> Node:
    """The text itself."""
    return Seq(tuple(Chars(((ord(char), ord(char)),)) for char in text))


def chars(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Chars:
    """A character class; overlapping ranges are merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            raise GrammarError("a character range runs backwards")
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Chars(subtract(((0, LAST_CODE_POINT),), tuple(merged)) if negated else tuple(merged))


def subtract(ranges: Ranges, holes: Ranges) -> Ranges:
    """``ranges`` without ``holes`` (both sorted and disjoint)."""
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        for hole_low, hole_high in holes:
            if hole_high < low or hole_low > high:
                continue
            if hole_low > low:
                kept.append((low, hole_low - 1))
            low = hole_high + 1
        if low <= high:
            kept.append((low, high))
    return tuple(kept)


def compile_rules(rules: Rules, unspellable: Ranges) -> str:
    """Plain GBNF of ``rules``, starting at "root"; ``unspellable`` code points are taken out.

    Raises GrammarError for what llama.cpp would not survive.
    """
    names = _reachable(rules)
    if len(names) > MAX_RULES:
        raise GrammarError(f"the grammar has more than {MAX_RULES} rules")
    _refuse_left_recursion(rules, names)
    if sum(_size(rules[name]) for name in names) > MAX_ELEMENTS:
        raise GrammarError(
            f"the grammar has more than {MAX_ELEMENTS} elements once its repetitions are unrolled"
        )
    written = {name: "root" if name == "root" else f"r{index}" for index, name in enumerate(names)}
    return "".join(f"{written[name]} ::= {_write(rules[name], written, unspellable)}\n" for name in names)


def _reachable(rules: Rules) -> list[str]:
    if "root" not in rules:
        raise GrammarError('the grammar has no rule "root"')
    found: dict[str, None] = {"root": None}
    pending = ["root"]
    while pending:
        for name in _refs(rules[pending.pop()]):
            if name not in rules:
                raise GrammarError(f'the rule "{name}" is not defined')
            if name not in found:
                found[name] = None
                pending.append(name)
    return list(found)


def _refs(node: Node) -> Iterable[str]:
    match node:
        case Ref(name):
            yield name
        case Seq(items) | Alt(items):
            for item in items:
                yield from _refs(item)
        case Repeat(item):
            yield from _refs(item)


def _nullable(node: Node, nullable: set[str]) -> bool:
    match node:
        case Chars():
            return False
        case Ref(name):
            return name in nullable
        case Seq(items):
            return all(_nullable(item, nullable) for item in items)
        case Alt(items):
            return any(_nullable(item, nullable) for item in items)
        case Repeat(item, low, _):
            return low == 0 or _nullable(item, nullable)


def _refuse_left_recursion(rules: Rules, names: list[str]) -> None:
    nullable: set[str] = set()
    while more := {n for n in names if n not in nullable and _nullable(rules[n], nullable)}:
        nullable |= more
    for name in names:
        _refuse_empty_loops(rules[name], nullable)
    edges = {name: set(_left_edge(rules[name], nullable)) for name in names}
    # What stands at nobody's left edge is peeled off; a cycle remains.
    while loose := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for name in loose:
            del edges[name]
    if edges:
        raise GrammarError(f'the rule "{min(edges)}" is left-recursive')


def _left_edge(node: Node, nullable: set[str]) -> Iterable[str]:
    """Rules that can begin where ``node`` begins."""
    match node:
        case Ref(name):
            yield name
        case Alt(items):
            for item in items:
                yield from _left_edge(item, nullable)
        case Seq(items):
            for item in items:
                yield from _left_edge(item, nullable)
                if not _nullable(item, nullable):
                    break
        case Repeat(item):
            yield from _left_edge(item, nullable)


def _refuse_empty_loops(node: Node, nullable: set[str]) -> None:
    # llama.cpp unrolls x* into a rule that names itself after x: left-recursive where x may be empty.
    match node:
        case Seq(items) | Alt(items):
            for item in items:
                _refuse_empty_loops(item, nullable)
        case Repeat(item, _, high):
            if high is None and _nullable(item, nullable):
                raise GrammarError("something that may be empty is repeated without end")
            _refuse_empty_loops(item, nullable)


def _size(node: Node) -> int:
    match node:
        case Chars(ranges):
            return 1 + len(ranges)
        case Ref():
            return 1
        case Seq(items) | Alt(items):
            return 1 + sum(_size(item) for item in items)
        case Repeat(item, low, high):
            return 2 + _size(item) * max(low + 1, high or 0, 1)


def _write(node: Node, names: dict[str, str], unspellable: Ranges) -> str:
    match node:
        case Chars(ranges):
            left = subtract(ranges, unspellable)
            if not left:
                raise GrammarError("a character is asked for that the model's vocabulary cannot spell")
            return "[" + "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in left) + "]"
        case Ref(name):
            return names[name]
        case Seq(items):
            return " ".join(_write(item, names, unspellable) for item in items) or '""'
        case Alt(items):
            return "(" + " | ".join(_write(item, names, unspellable) for item in items) + ")"
        case Repeat(item, low, high):
            return f"({_write(item, names, unspellable)}){{{low},{'' if high is None else high}}}"
