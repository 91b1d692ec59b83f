"""What the core refuses, and in which words; nothing that it is given ends the process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from wsgi_router import native
from wsgi_router._core import CONTEXT_LENGTH, FUEL, INVALID_REQUEST, TEMPLATE, WORKER, json_work

LOAD, INTERNAL = 5, 7


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> native.Tokenizer:
    return native.Tokenizer(str(folder))


def job(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def load_error(path: Path, template: str | None = None) -> native.NativeError:
    with pytest.raises(native.NativeError) as caught:
        native.Tokenizer(str(path), template)
    assert caught.value.code == LOAD
    assert "\n" not in caught.value.message
    return caught.value


def render_error(folder: Path, template: str, fuel: int = 0, **fields: Any) -> native.NativeError:
    with pytest.raises(native.NativeError) as caught:
        native.Tokenizer(str(folder), template).render(job(**fields), fuel)
    return caught.value


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "no such folder"
    assert str(missing) in load_error(missing).message


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert "tokenizer.json" in load_error(tmp_path).message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"model": 5}',
        '{"version": "1.0", "model": {"type": "Unheard"}}',
        "\x00\xff" * 9,
    ],
)
def test_a_broken_tokenizer(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text, "latin-1")
    assert str(file) in load_error(file).message
    assert str(file) in load_error(tmp_path).message


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
def test_a_broken_file_beside_it_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text("{,}")
    assert name in load_error(tmp_path).message


@pytest.mark.parametrize(
    ("template", "line"),
    [("{% if %}", 1), ("a\nb\n{{ x | }}", 3), ("a\n{% for x in y %}", 2), ("\n{% unheard %}", 2)],
)
def test_a_templates_syntax_error_names_its_line(template: str, line: int, folder: Path) -> None:
    assert f"line {line}" in load_error(folder, template).message


def test_a_template_that_raises(folder: Path) -> None:
    error = render_error(folder, "{{ raise_exception('Roles must alternate: ' ~ messages[0].role ~ '…') }}")
    assert (error.code, error.message, error.param) == (TEMPLATE, "Roles must alternate: user…", "messages")


def test_a_template_that_fails_names_its_line(folder: Path) -> None:
    error = render_error(folder, "a\nb{{ messages[0].missing.deeper }}")
    assert (error.code, error.param) == (TEMPLATE, "messages")
    assert "line 2" in error.message


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10000) %}" * 4 + "{% endfor %}" * 4,
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s * 2 %}{% endfor %}{{ n.s }}",
        "{{ 'x' * 1000000000000 }}",
        "{% for i in range(9999999999) %}{% endfor %}",
        "{{ messages[0].content.replace('', 'x' * 1000000) * 1000000 }}",
    ],
    ids=["loops", "recursion", "doubling", "product", "range", "replace"],
)
def test_a_template_without_bounds_is_stopped(template: str, folder: Path) -> None:
    error = render_error(folder, template)
    assert error.code in (TEMPLATE, FUEL)
    assert error.param == "messages"


def test_fuel_is_what_the_caller_allows(folder: Path) -> None:
    template = "{% for i in range(3000) %}.{% endfor %}"
    error = render_error(folder, template, 1000)
    assert (error.code, error.param) == (FUEL, "messages")
    assert native.Tokenizer(str(folder), template).render(job(), 1_000_000) == "." * 3000


def test_the_prompt_and_the_answer_must_fit(tokenizer: native.Tokenizer) -> None:
    prompt = tokenizer.prepare(job()).prompt_tokens
    fits = tokenizer.prepare(job(context_length=prompt + 5, max_tokens=5))
    assert fits.max_new_tokens == 5
    assert tokenizer.prepare(job(context_length=prompt + 5)).max_new_tokens == 5
    assert tokenizer.prepare(job()).max_new_tokens is None
    for fields, numbers in [
        ({"context_length": prompt}, (prompt,)),
        ({"context_length": prompt + 5, "max_tokens": 6}, (prompt + 5, prompt + 6, prompt, 6)),
        ({"context_length": 3, "max_tokens": 1}, (3, "30 bytes")),
    ]:
        with pytest.raises(native.NativeError) as caught:
            tokenizer.prepare(job(**fields))
        assert (caught.value.code, caught.value.param) == (CONTEXT_LENGTH, "messages")
        assert all(f"{number}" in caught.value.message for number in numbers)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_lone_surrogates_are_no_text(text: str, tokenizer: native.Tokenizer) -> None:
    """ASCII JSON can carry them; Python's own encoder refuses to."""
    with pytest.raises(native.NativeError, match=r"surrogate|escape"):
        tokenizer.prepare(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
    with pytest.raises(native.NativeError):
        tokenizer.prepare(b'{"prompt": "' + text.encode("utf-8", "surrogatepass") + b'"}')
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode(text)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"messages": 5, "unknown": 1}',
        b'{"messages": [], "max_tokens": -1}',
        b'{"input_ids": [-1]}',
        b'{"input_ids": [99999999999]}',
        b'{"messages": [{"content": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    ],
)
def test_a_job_that_cannot_be_read_is_a_bug_of_ours(given: bytes, tokenizer: native.Tokenizer) -> None:
    for call in (tokenizer.prepare, tokenizer.render):
        with pytest.raises(native.NativeError) as caught:
            call(given)
        assert caught.value.code == INTERNAL


@pytest.mark.parametrize("messages", [[], 5, "x", [5], [[]], {}])
def test_messages_that_are_none(messages: Any, tokenizer: native.Tokenizer) -> None:
    with pytest.raises(native.NativeError) as caught:
        tokenizer.prepare(job(messages=messages))
    assert caught.value.code == INVALID_REQUEST
    assert caught.value.param.startswith("messages")


def test_an_id_beyond_the_vocabulary_is_named(tokenizer: native.Tokenizer) -> None:
    given = {"input_ids": [1, 2, 258]}
    with pytest.raises(native.NativeError) as caught:
        tokenizer.prepare(json.dumps(given).encode())
    assert (caught.value.code, caught.value.param) == (INVALID_REQUEST, "input_ids[2]")
    assert "258" in caught.value.message


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template", "now\0"])
def test_template_arguments_cannot_replace_the_routers(name: str, tokenizer: native.Tokenizer) -> None:
    with pytest.raises(native.NativeError) as caught:
        tokenizer.prepare(job(chat_template_kwargs={name: "{{ 1 }}"}))
    assert (caught.value.code, caught.value.param) == (INVALID_REQUEST, f"chat_template_kwargs.{name}")


def test_codes_are_those_of_the_core() -> None:
    source = (Path(__file__).parents[1] / "_native/core/src/error.rs").read_text("utf-8")
    codes = {name: int(code) for name, code in re.findall(r"^    (\w+) = (\d+),$", source, re.MULTILINE)}
    assert codes == {
        "InvalidRequest": INVALID_REQUEST,
        "ContextLength": CONTEXT_LENGTH,
        "Template": TEMPLATE,
        "Fuel": FUEL,
        "Load": LOAD,
        "Worker": WORKER,
        "Internal": INTERNAL,
    }


def test_the_work_of_decoding() -> None:
    def work(value: object) -> int:
        return json_work(json.dumps(value).encode())

    assert work("long text, [with] {marks} " * 1000) == work("")
    assert work(["x"] * 1000) == 1000 * work("x") + work([]) + 999
    assert work("\n" * 1000) == work("") + 1000
    assert json_work(b"") == 0
    assert json_work(bytes(range(256)) * 10) > 0


def test_a_tokenizer_without_a_template(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    bare = native.Tokenizer(str(tmp_path))
    assert bare.info["has_chat_template"] is False
    with pytest.raises(native.NativeError) as caught:
        bare.prepare(job())
    assert (caught.value.code, caught.value.param) == (INVALID_REQUEST, "messages")
    assert bare.prepare(b'{"prompt": "hi"}').token_ids() == [*b"hi"]


def test_deep_values_overflow_no_stack(folder: Path) -> None:
    """Arguments as deep as JSON may be, printed, dumped and compared by a template."""
    deep: Any = "x"
    for _ in range(60):
        deep = {"a": [deep]}
    template = "{{ messages[0].x }}{{ messages[0].x | tojson(indent=2) }}{{ messages[0].x == messages[0].x }}"
    given = job(messages=[{"role": "user", "content": "", "x": deep}])
    text = native.Tokenizer(str(folder), template).render(given)
    assert text.startswith("{'a': [{'a': [")
    assert text.endswith("True")


def test_a_template_that_nests_without_bounds(folder: Path) -> None:
    template = (
        "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}"
    )
    assert render_error(folder, template).code in (TEMPLATE, FUEL)


@pytest.mark.parametrize("arguments", [(5,), (None,), ("text",)])
def test_wrong_types_are_type_errors(arguments: tuple[Any, ...], tokenizer: native.Tokenizer) -> None:
    with pytest.raises(TypeError):
        tokenizer.prepare(*arguments)
    with pytest.raises(TypeError):
        native.Stream(tokenizer, *arguments)
    with pytest.raises(TypeError):
        native.Stream(None, b"{}")  # type: ignore[arg-type]
