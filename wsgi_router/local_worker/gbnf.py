"""Reads GBNF, the grammar notation of llama.cpp, into the tree of ``grammar``.

The same text is what SGLang calls ``ebnf``: rules ``name ::= …``, literals, character classes, groups,
``|``, ``* + ? {m} {m,} {m,n}``, ``.`` and ``#`` comments. A rule ends where the next ``name ::=`` begins.
"""

from __future__ import annotations

import re
from typing import NoReturn

from wsgi_router.local_worker.grammar import (
    LAST_CODE_POINT,
    MAX_DEPTH,
    MAX_REPEAT,
    MAX_TEXT,
    Alt,
    Chars,
    GrammarError,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    chars,
    literal,
)

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_-][A-Za-z0-9_.-]*|[0-9][A-Za-z0-9_-]*")
_HEAD = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9_.-]*)(?:\s|#[^\n]*)*::=")
_REPEAT = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_gbnf(text: str) -> Rules:
    """The rules of ``text`` by name; GrammarError with the offset where it cannot be read."""
    if len(text) > MAX_TEXT:
        raise GrammarError(f"the grammar is longer than {MAX_TEXT} characters")
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def rules(self) -> Rules:
        found: Rules = {}
        self.blank()
        while self.at < len(self.text):
            head = _HEAD.match(self.text, self.at)
            if head is None:
                self.fail("a rule (name ::= …) is expected")
            if head[1] in found:
                self.fail(f'the rule "{head[1]}" is defined twice')
            self.at = head.end()
            found[head[1]] = self.alternatives()
        return found

    def fail(self, why: str) -> NoReturn:
        raise GrammarError(f"at offset {self.at}: {why}")

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        self.blank()
        return self.text[self.at : self.at + 1]

    def alternatives(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("groups are nested too deeply")
        items = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            items.append(self.sequence())
        self.depth -= 1
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def sequence(self) -> Node:
        items: list[Node] = []
        while (item := self.item()) is not None:
            items.append(self.repeated(item))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def item(self) -> Node | None:
        char = self.peek()
        if char == '"':
            return self.quoted()
        if char == "[":
            return self.char_class()
        if char == "(":
            self.at += 1
            inner = self.alternatives()
            if self.peek() != ")":
                self.fail('")" is expected')
            self.at += 1
            return inner
        if char == ".":
            self.at += 1
            return Chars(((0, LAST_CODE_POINT),))
        if _HEAD.match(self.text, self.at) is not None:
            return None
        if name := _NAME.match(self.text, self.at):
            self.at = name.end()
            return Ref(name[0])
        return None

    def repeated(self, item: Node) -> Node:
        char = self.peek()
        if char == "{":
            return self.counted(item)
        if char not in ("*", "+", "?"):
            return item
        self.at += 1
        return Repeat(item, 1 if char == "+" else 0, 1 if char == "?" else None)

    def counted(self, item: Node) -> Node:
        match = _REPEAT.match(self.text, self.at)
        if match is None:
            self.fail("{m}, {m,} or {m,n} is expected")
        low = int(match[1])
        high = int(match[3]) if match[3] else (None if match[2] else low)
        if low > MAX_REPEAT or (high or 0) > MAX_REPEAT or (high is not None and high < low):
            self.fail(f"repetitions run from 0 to {MAX_REPEAT}, low before high")
        self.at = match.end()
        return Repeat(item, low, high)

    def quoted(self) -> Node:
        self.at += 1
        text = ""
        while not self.text.startswith('"', self.at):
            text += chr(self.char())
        self.at += 1
        return literal(text)

    def char_class(self) -> Node:
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while not self.text.startswith("]", self.at):
            low = high = self.char()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.char()
            ranges.append((low, high))
        self.at += 1
        return chars(ranges, negated)

    def char(self) -> int:
        """One character of a literal or class, its escape resolved."""
        if self.at >= len(self.text):
            self.fail("the text ends inside a literal or a class")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if digits := _HEX.get(kind):
            code = self.text[self.at : self.at + digits]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code) or int(code, 16) > LAST_CODE_POINT:
                self.fail("a hexadecimal character code is expected")
            self.at += digits
            return int(code, 16)
        if kind in ("\\", '"', "[", "]", "-", "^", "/", "'"):
            return ord(kind)
        if kind not in _ESCAPES:
            self.fail("an unknown escape")
        return ord(_ESCAPES[kind])
