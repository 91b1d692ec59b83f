"""Templates and inputs built to burn time or memory: each ends soon, with an error of its own."""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from wsgi_router import _core, native

# Far above the second that a release build takes at most, for a busy machine and an unoptimised core.
SECONDS = 20
MEGABYTES = 400

#: The error of a template that cannot be loaded; requests never see it.
LOAD = 5

LONG = "{% set x = 'a' * 10**7 %}{% set y = 'a' * 10**7 %}"
WIDE = "{% set x = [1] * 10**6 %}"
TURNS = "{% for i in range(99999) %}"
DOUBLED = "{% set s = [1] %}{% set t = [1] %}" + "{% set s = [s, s] %}{% set t = [t, t] %}" * 40
PILE = "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = BODY %}{% endfor %}"

#: Used up before the end.
BURNING: dict[str, str] = {
    "loops": TURNS + TURNS + "{% endfor %}{% endfor %}",
    "repeat": "{{ ('a' * 10**9)|length }}",
    "double with ~": PILE.replace("BODY", "ns.s ~ ns.s"),
    "double with +": PILE.replace("BODY", "ns.s + ns.s"),
    "double with Markup": PILE.replace("BODY", "(ns.s|safe) + ns.s"),
    "double by replace": PILE.replace("BODY", "ns.s.replace('a', 'aaaa')"),
    "double by the filter": PILE.replace("BODY", "ns.s|replace('', 'aaaa')"),
    "double by %": PILE.replace("BODY", "'%s%s' % (ns.s, ns.s)"),
    "double by a block": "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}"
    "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "join": "{% set x = 'a' * 10**6 %}{{ x.join(x)|length }}",
    "join filter": "{{ (['a' * 10**6] * 10**6)|join('b' * 10**6)|length }}",
    "map makes long texts": "{{ ([''] * 10**5)|map('replace', '', 'a' * 10**5)|list|length }}",
    "map with a long argument": DOUBLED + "{{ (['a'] * 10**5)|map('default', s, boolean=true)|list|length }}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "nested lists": PILE.replace("BODY", "[ns.s, ns.s]"),
    "compare texts": LONG + TURNS + "{% if x == y %}{% endif %}{% endfor %}",
    "index a text": LONG + TURNS + "{% set z = x[-1] %}{% endfor %}",
    "index a list": WIDE + TURNS + "{% set z = x[-1] %}{% endfor %}",
    "slice a text": LONG + TURNS + "{% set z = x[::2] %}{% endfor %}",
    "slice of slices": "{% set ns = namespace(s=[1] * 9999) %}" + TURNS +
    "{% set ns.s = ns.s[0:] %}{% endfor %}",
    "test a text": LONG + TURNS + "{% if x is lower %}{% endif %}{% endfor %}",
    "strip": LONG + TURNS + "{% set z = x.strip('b') %}{% endfor %}",
    "split": "{% set x = 'a ' * 10**6 %}" + TURNS + "{% set z = x.split() %}{% endfor %}",
    "sort texts": "{% set x = 'a' * 10**6 %}" + TURNS + "{% set z = ([x] * 10000)|sort %}{% endfor %}",
    "sum lists": "{{ ([[1]] * 10**6)|sum(start=[])|length }}",
    "contains": WIDE + TURNS + "{% if 2 in x %}{% endif %}{% endfor %}",
    "batch": TURNS + "{% set x = [1]|batch(10**5, 'x')|list %}{% endfor %}",
    "slice filter": "{{ [1]|slice(10**9)|list|length }}",
    "printf width": "{{ '%999999999d'|format(1)|length }}",
    "printf precision": "{{ ('%.999999999f' % 1.5)|length }}",
    "format fields": "{{ ('{0}' * 60000).format('a' * 60000)|length }}",
    "center": "{{ 'a'|center(10**9)|length }}",
    "zfill": "{{ 'a'.zfill(10**9)|length }}",
    "indent": "{{ 'a'|indent(10**12, true)|length }}",
    "indent by a text": "{{ ('\n' * 10**5)|indent('a' * 10**5)|length }}",
    "expandtabs": "{{ ('\t' * 10**5).expandtabs(10**6)|length }}",
    "tojson separators": "{% set i = 'a' * 10**6 %}{{ ([1] * 10**5)|tojson(separators=(i, i))|length }}",
    "strftime": "{% set x = '%c' * 10**5 %}" + TURNS + "{% set y = strftime_now(x) %}{% endfor %}",
} | {
    f"nested and shared: {body}": DOUBLED + "{{ " + body + " }}"
    for body in (
        "s", "s|tojson|length", "s ~ ''", "s == t", "s in [t]", "[s, t]|sort", "[s, t]|unique|list",
        "[s, t]|max", "[{'a': s}, {'a': t}]|groupby('a')", "{s: 1}", "s is eq(t)", "[s].index(t)", "[s]|join",
        "'%s' % s", "'%s'|format(s)", "'{}'.format(s)|length", "s|upper", "s|indent", "s|e", "s|string",
        "'a'|replace('a', s)", "[s]|map('upper')|list", "raise_exception(s)", "{}.get(s)",
    )
}  # fmt: skip

#: Refused at once: when the template is loaded, or as Python would.
REFUSED: dict[str, str] = {
    "range": "{{ range(10**9)|list }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "deep namespace": "{% set ns = namespace(s=[1]) %}" + TURNS + "{% set ns.s = [ns.s] %}{% endfor %}",
    "deep generators": "{% set ns = namespace(s=[1]) %}" + TURNS +
    "{% set ns.s = {'a': ns.s}|items %}{% endfor %}",
    "itself": "{% set ns = namespace(s=1) %}{% set ns.s = [ns] %}{{ ns.s }}",
    "itself compared": "{% set a = namespace(s=1) %}{% set a.s = [a] %}{% set b = namespace(s=1) %}"
    "{% set b.s = [b] %}{{ a.s == b.s }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "power": "{{ 99**99**99 }}",
    "include": "{% include 'chat_template' %}",
    "brackets": "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "too long": "{{ 1 }}" * 50000,
    "ifs": "{% if x %}" * 5000 + "{% endif %}" * 5000,
    "elifs": "{% if x %}" + "{% elif x %}" * 20000 + "{% endif %}",
} | {
    f"chain: {link}": "{{ x" + link * 15000 + " }}"
    for link in (" + 1", "|e", ".a", "[0]", " and a", " if 1 else x", "**2", "~1", " is none", "()")
}  # fmt: skip


def _run(folder: Path, source: str, job: bytes, out: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    try:
        code = len(native.Tokenizer(str(folder), source).render(job)) * 0
    except native.NativeError as error:
        code = error.code
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    out.send((code, time.monotonic() - start, used))


def _measured(folder: Path, source: str, job: bytes) -> tuple[int, float, int]:
    """Code of the error (0: none), seconds, megabytes; in a process of its own, which may crash."""
    mine, its = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(folder, source, job, its))
    process.start()
    its.close()
    try:
        assert mine.poll(SECONDS), "it does not end"
        code, seconds, used = mine.recv()
    finally:
        process.kill()
        process.join()
    return code, seconds, used


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tokenizer"))


JOB = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.mark.parametrize("name", BURNING)
def test_what_burns_is_put_out(name: str, folder: Path) -> None:
    code, seconds, used = _measured(folder, BURNING[name], JOB)
    assert code == _core.FUEL
    assert seconds < SECONDS
    assert used < MEGABYTES


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_too_deep_is_refused(name: str, folder: Path) -> None:
    code, seconds, used = _measured(folder, REFUSED[name], JOB)
    assert code in (_core.TEMPLATE, LOAD)
    assert seconds < SECONDS
    assert used < MEGABYTES


def test_straight_code_cannot_nest_too_deeply(folder: Path) -> None:
    code, _, _ = _measured(folder, "{% set x = [1] %}" + "{% set x=[x] %}" * 16000 + "{{ x|length }}", JOB)
    assert code == 0


def _messages(count: int, length: int) -> list[dict[str, Any]]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": "x" * length} for at in range(count)]


INPUTS: dict[str, dict[str, Any]] = {
    "many messages": {"messages": _messages(100_000, 1)},
    "long content": {"messages": _messages(1, 40_000_000)},
    "many long messages": {"messages": _messages(1001, 20_000)},
    "wide kwargs": {"messages": _messages(1, 1),
        "chat_template_kwargs": {"enable_thinking": [[0] * 100] * 20_000}},
    "deep arguments": {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]},
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("model", ["qwen3", "llama3_1", "Qwen3.5-4B", "openai-gpt-oss-120b", "Kimi-K3"])
def test_a_large_input_ends(name: str, model: str, folder: Path) -> None:
    from tests.support import templates

    source = templates.template(model).source
    code, seconds, used = _measured(folder, source, json.dumps(INPUTS[name]).encode())
    assert code in (0, _core.FUEL, _core.TEMPLATE)
    assert seconds < SECONDS
    assert used < 3 * MEGABYTES
