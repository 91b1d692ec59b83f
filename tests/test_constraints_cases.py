"""Recorded constraints: what a grammar engine takes them for.

Each case of cases/constraints.json is a request, its constraint, and texts that the constraint allows or
refuses. They were tried with xgrammar 0.1.32 and 0.2.8; where xgrammar is installed they are tried again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wsgi_router import constraints, parsers
from wsgi_router.schema.output import parse_output

CASES = json.loads((Path(__file__).parent / "cases" / "constraints.json").read_text("utf-8"))
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])


def test_every_format_with_markers_has_a_case() -> None:
    assert {case["format"] for case in CASES} >= {form.name for form in parsers.TOOL_FORMATS if form.markers}


@each_case
def test_the_constraint_is_the_one_that_was_tried(case: dict[str, Any]) -> None:
    output = parse_output(case["request"])
    form = parsers.TOOLS.choose(case["format"], [])
    made = constraints.build(output.tools, output.format, form)
    assert (made.field, json.loads(made.value)) == (case["field"], case["constraint"])


def test_the_constraints_allow_what_they_should() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    allows = pytest.importorskip("xgrammar.testing")._is_grammar_accept_string

    read = {
        "json_schema": xgrammar.Grammar.from_json_schema,
        "structural_tag": xgrammar.Grammar.from_structural_tag,
    }
    for case in CASES:
        grammar = read[case["field"]](json.dumps(case["constraint"]))
        wrong = [text for text in case["accepts"] if not allows(grammar, text)]
        wrong += [text for text in case["refuses"] if allows(grammar, text)]
        assert (case["case"], wrong) == (case["case"], [])
