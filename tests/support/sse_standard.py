"""A reader of event streams by the rules of the HTML standard (9.2.6, "Interpreting an event stream")."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    data: str
    type: str = "message"
    last_id: str = ""


@dataclass
class Interpreted:
    events: list[Event] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    retry: int | None = None


def interpret(stream: bytes) -> Interpreted:
    """All that a browser would make of a whole stream; an event without its blank line is dropped."""
    lines = _LINE_END.split(stream.decode("utf-8").removeprefix("\ufeff"))
    found = Interpreted()
    data: list[str] = []
    kind = last_id = ""
    for line in lines[:-1]:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.events.append(Event("\n".join(data), kind or "message", last_id))
            data, kind = [], ""
        elif colon and not name:
            found.comments.append(value)
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
        elif name == "retry" and value.isdecimal():
            found.retry = int(value)
    return found
