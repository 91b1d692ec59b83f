"""Follows a constrained answer beside llama.cpp, to stop in time where the grammar is too ambiguous.

llama.cpp keeps one stack for each way the text so far can be read, and meets the same stack again by each
path that leads to it: a grammar like ``root ::= [a-z]{2} root* | [a-z]`` makes it slower with every letter
until the process stands still. The same steps are counted here, for the one text that was sampled; the
request ends past MAX_STEPS for one character (measured: 800 steps go with 0.3 s a token, 2,500 with 5 s).
"""

from __future__ import annotations

import codecs
from typing import Any

from wsgi_router.local_worker.grammar import Alt, Chars, GrammarError, Node, Ref, Repeat, Rules, Seq

MAX_STEPS = 1_500

# What is still to be read: the next node, how often it has been repeated, and what follows; None: the end.
Rest = tuple[Node, int, Any] | None


class Matcher:
    """The ways to read a growing text."""

    def __init__(self, rules: Rules) -> None:
        """GrammarError if the very beginning takes too many steps."""
        self._rules = rules
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ways = self._expand([(rules["root"], 0, None)])

    def __repr__(self) -> str:
        return f"<Matcher {len(self._ways)} ways>"

    def feed(self, data: bytes) -> None:
        """Go on by a token's bytes; a character's last byte moves it. GrammarError past MAX_STEPS."""
        for char in self._decoder.decode(data):
            code = ord(char)
            self._ways = self._expand(
                [way[2] for way in self._ways if way is not None and _takes(way[0], code)]
            )

    def probe(self, length: int) -> None:
        """Try a text as long as a long token, each character taken by the most ways; GrammarError as in feed.

        The sampler looks at every token of the vocabulary, also at those that will not be chosen.
        """
        kept = self._ways
        for _ in range(length):
            firsts = {
                way[0].ranges[0][0] for way in self._ways if way is not None and isinstance(way[0], Chars)
            }
            if not firsts:
                break
            takers = {
                code: sum(way is not None and _takes(way[0], code) for way in self._ways) for code in firsts
            }
            best = max(firsts, key=lambda code: (takers[code], -code))
            self._ways = self._expand(
                [way[2] for way in self._ways if way is not None and _takes(way[0], best)]
            )
        self._ways = kept

    def _expand(self, pending: list[Rest]) -> set[Rest]:
        """All ways whose next node is a character (or the end)."""
        ways: set[Rest] = set()
        steps = 0
        while pending:
            way = pending.pop()
            steps += 1
            if steps > MAX_STEPS:
                raise GrammarError(
                    "the grammar is too ambiguous for the text so far, or has too many choices"
                )
            if way is None or isinstance(way[0], Chars):
                ways.add(way)
            else:
                pending.extend(self._open(*way))
        return ways

    def _open(self, node: Node, count: int, rest: Rest) -> list[Rest]:
        match node:
            case Ref(name):
                return [(self._rules[name], 0, rest)]
            case Seq(items):
                for item in reversed(items):
                    rest = (item, 0, rest)
                return [rest]
            case Alt(items):
                return [(item, 0, rest) for item in items]
            case Repeat(item, low, high):
                found = [rest] if count >= low else []
                if high is None or count < high:
                    # Beyond ``low`` of an endless repetition all counts are the same state.
                    found.append(
                        (item, 0, (node, count + 1 if high is not None else min(count + 1, low), rest))
                    )
                return found
            case Chars():
                return [(node, count, rest)]


def _takes(node: Node, code: int) -> bool:
    return isinstance(node, Chars) and any(low <= code <= high for low, high in node.ranges)
