"""Kubernetes' label selectors: which labels one matches.

Kubernetes itself finds the pods of a selector. The router looks at one to tell to which of several selectors
a pod belongs, and at the start, whether it is one at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_REQUIREMENT: Final = re.compile(
    rf"""\s*(?: !\s*(?P<absent>{_KEY})
        | (?P<compared>{_KEY})\s*(?P<sign>==?|!=|<|>)\s*(?P<value>{_VALUE})
        | (?P<listed>{_KEY})\s+(?P<word>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)
        | (?P<present>{_KEY})
    )\s*(?:(?P<more>,)|$)""",
    re.VERBOSE,
)

Operator = Literal["exists", "absent", "in", "notin", "<", ">"]
_SIGNS: Final[Mapping[str, Operator]] = {"=": "in", "==": "in", "!=": "notin", "<": "<", ">": ">"}


class Requirement(NamedTuple):
    """What a selector says of one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "absent":
                return value is None
            case "notin":
                return value not in self.values
            case "exists":
                return value is not None
            case "in":
                return value in self.values
        if value is None or not _is_number(value):
            return False
        bound = int(self.values[0])
        return int(value) < bound if self.operator == "<" else int(value) > bound


def parse(text: str) -> tuple[Requirement, ...]:
    """What a selector requires, all of it; nothing if it is empty. Raises ValueError."""
    found: list[Requirement] = []
    place, more = 0, bool(text.strip())
    while more:
        match = _REQUIREMENT.match(text, place)
        if match is None:
            raise ValueError(f"{text!r} is no label selector, from {text[place:].strip()!r} on")
        found.append(_requirement(match))
        place, more = match.end(), match["more"] is not None
    return tuple(found)


def _requirement(match: re.Match[str]) -> Requirement:
    if key := match["absent"]:
        return Requirement(key, "absent")
    if key := match["present"]:
        return Requirement(key, "exists")
    if key := match["listed"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(key, "in" if match["word"] == "in" else "notin", values)
    operator = _SIGNS[match["sign"]]
    if operator in ("<", ">") and not _is_number(match["value"]):
        raise ValueError(f"{match[0].strip()!r} compares with no whole number")
    return Requirement(match["compared"], operator, (match["value"],))


def matches(selector: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    """Whether all that a selector requires holds."""
    return all(requirement.holds(labels) for requirement in selector)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None
