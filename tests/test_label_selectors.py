"""Kubernetes' label selectors, as its documentation and its API server have them."""

from __future__ import annotations

import pytest

from wsgi_router.label_selectors import matches, parse

LABELS = {"app": "sglang", "role": "prefill", "sglang.ai/tier": "gold", "gpus": "8", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", True),
        (" ", True),
        ("app=sglang", True),
        ("app==sglang", True),
        (" app = sglang , role = prefill ", True),
        ("app=sglang,role=decode", False),
        ("app!=sglang", False),
        ("app!=other", True),
        ("nothing!=x", True),  # a label that is not there is no other than asked
        ("nothing=x", False),
        ("nothing=", False),
        ("empty=", True),
        ("empty=,app=sglang", True),
        ("sglang.ai/tier=gold", True),
        ("role in (decode, prefill)", True),
        ("role in(prefill)", True),
        ("role in (decode)", False),
        ("role in (decode),app=sglang", False),
        ("nothing in (a,)", False),
        ("empty in (a,)", True),
        ("role notin (decode,regular)", True),
        ("role notin ( prefill )", False),
        ("nothing notin (a)", True),
        ("role", True),
        ("nothing", False),
        ("in", False),
        ("!role", False),
        ("! nothing,app", True),
        ("gpus>4,gpus<9", True),
        ("gpus>8", False),
        ("role>1", False),
        ("nothing<1", False),
    ],
)
def test_what_matches(selector: str, found: bool) -> None:
    assert matches(parse(selector), LABELS) is found


@pytest.mark.parametrize(
    "selector",
    [
        *(
            ",",
            "a,",
            ",a",
            "a,,b",
            "=a",
            "a=b=c",
            "a=b c",
            "a b",
            "!a=b",
            "!",
            "a in",
            "a in b",
            "a in (b",
            "a in ()x",
        ),
        *(
            "a in (b c)",
            "a in (b),",
            "a===b",
            "a!b",
            "a=(b)",
            "a>b",
            "a<",
            "-a",
            "a-=b",
            "a=-b",
            "/a",
            "a=b/c",
        ),
    ],
)
def test_what_is_none(selector: str) -> None:
    with pytest.raises(ValueError, match=r"is no label selector|no whole number"):
        parse(selector)
