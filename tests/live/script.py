"""Answers of the shared simulators: a prompt that holds the word on the left gets the answer on the right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXT = "Hello, wörld! 你好 𠜎 👩‍👩‍👧‍👦 é – fin."

ANSWERS: dict[str, dict[str, Any]] = {
    "say-text": {"text": TEXT},
    "in-chunks": {"text": TEXT, "chunks": [1, 5, 2]},
    "wait-first": {"text": TEXT, "ttft_ms": 3000, "itl_ms": 20},
    "say-stop": {"text": "one two STOP three four", "itl_ms": 20},
    "refuse-input": {"error": {"status": "INVALID_ARGUMENT", "message": "no such thing"}},
    "out-of-memory": {"error": {"status": "RESOURCE_EXHAUSTED", "message": "too busy"}},
    "break-midway": {
        "text": TEXT,
        "error": {"status": "INTERNAL", "message": "engine broke", "after_tokens": 3},
    },
    "abort-first": {"abort": {"after_tokens": 0}},
    "abort-midway": {"text": TEXT, "abort": {"after_tokens": 3}},
    "speak-garbage": {"text": TEXT, "garbage": {"hex": "ffffffff", "after_tokens": 3}},
    "end-early": {"text": TEXT, "no_complete": {"after_tokens": 3}},
    "hang-first": {"hang": {"after_tokens": 0}},
    "hang-midway": {"text": TEXT, "hang": {"after_tokens": 3}},
    "go-slowly": {"random": 200, "itl_ms": 50, "free": True},
}


def write(
    path: Path, answers: dict[str, dict[str, Any]] = ANSWERS, first: Sequence[dict[str, Any]] = ()
) -> Path:
    """A script file for the simulator; the rules in `first` come before those made of `answers`."""
    rules = [*first, *({"match": {"text": word}, "answer": answer} for word, answer in answers.items())]
    path.write_text(json.dumps(rules), "utf-8")
    return path
