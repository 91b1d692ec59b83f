"""The native core behind its Python face: loading, errors, the pool for long jobs."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import modes
from wsgi_router import errors, native, runtime
from wsgi_router.settings import Settings, SettingsError


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> native.Tokenizer:
    loaded = native.load_tokenizer(Settings(tokenizer_path=str(folder)))
    assert loaded is not None
    return loaded


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls that went to the pool."""
    calls: list[tuple[Any, ...]] = []
    call = runtime.call_in_pool

    def noted(function: Callable[..., Any], *args: Any) -> Any:
        calls.append(args)
        return call(function, *args)

    monkeypatch.setattr(runtime, "call_in_pool", noted)
    return calls


def job(text: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


def test_the_beginning_of_the_ids(tokenizer: native.Tokenizer) -> None:
    prepared = tokenizer.prepare(job("hi"))
    ids = prepared.token_ids()
    for count in (0, 1, len(ids), len(ids) + 1, 2**63):
        assert prepared.prefix(count) == array("I", ids[:count]).tobytes()
    with pytest.raises(OverflowError):
        prepared.prefix(-1)


def test_without_a_path_there_is_no_tokenizer() -> None:
    assert native.load_tokenizer(Settings()) is None


def test_a_template_of_ones_own(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    loaded = native.load_tokenizer(Settings(tokenizer_path=str(folder), chat_template=str(file)))
    assert loaded is not None
    assert loaded.prepare(job("ä")).prompt == "<ä>"


@pytest.mark.parametrize("named", ["TOKENIZER_PATH", "CHAT_TEMPLATE", "CHAT_TEMPLATES: m"])
def test_what_cannot_be_loaded_is_one_line(folder: Path, tmp_path: Path, named: str) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    template = tmp_path / "template.jinja"
    template.write_text("{{ half(")
    cases = {
        "TOKENIZER_PATH": [
            Settings(tokenizer_path=str(path)) for path in (tmp_path, broken, tmp_path / "no")
        ],
        "CHAT_TEMPLATE": [
            Settings(tokenizer_path=str(folder), chat_template=str(path))
            for path in (tmp_path / "no.jinja", template, tmp_path)
        ],
        "CHAT_TEMPLATES: m": [
            *(
                Settings(tokenizer_path=str(folder), chat_templates=(("m", str(path)),))
                for path in (tmp_path / "no.jinja", template)
            ),
            Settings(tokenizers=(("m", str(folder)),), chat_templates=(("m", str(template)),)),
            Settings(chat_templates=(("m", str(tmp_path)),)),  # read though nobody has asked for it yet
        ],
    }
    for settings in cases[named]:
        with pytest.raises(SettingsError, match=named) as caught:
            native.load_tokenizer(settings)
        assert "\n" not in str(caught.value)


def test_one_tokenizer_is_loaded_once(folder: Path, tmp_path: Path) -> None:
    """For all models that name it with the same template."""
    template = tmp_path / "template.jinja"
    template.write_text("x")
    path = str(folder)
    settings = Settings(
        tokenizer_path=path,
        tokenizers=(("a", path), ("b", path)),
        chat_templates=(("b", str(template)), ("c", str(template))),
    )
    found = native.load_tokenizers(settings)
    assert found.keys() == {native.DEFAULT, "a", "b", "c"}
    assert found[native.DEFAULT] is found["a"] is not found["b"]
    assert found["b"] is found["c"]
    job_of_b = found["b"].prepare(job("ä"))
    assert job_of_b.prompt == "x"


def no_thread_scenario(folder: str) -> None:
    settings = Settings(tokenizer_path=folder)
    threads = len(os.listdir("/proc/self/task"))
    native.share_tokenizers(settings, native.read_tokenizers(settings))
    assert len(os.listdir("/proc/self/task")) == threads


def test_a_shared_tokenizer_is_had_by_all_and_starts_no_thread(folder: Path) -> None:
    modes.run("threads", no_thread_scenario, str(folder))
    settings = Settings(tokenizer_path=str(folder))
    native.share_tokenizers(settings, native.read_tokenizers(settings))
    try:
        assert native.load_tokenizer(settings) is native.load_tokenizer(settings)
    finally:
        native.share_tokenizers(settings, {})
    assert native.load_tokenizer(settings) is not native.load_tokenizer(settings)


def test_short_jobs_are_done_at_once(tokenizer: native.Tokenizer, pooled: list[Any]) -> None:
    assert native.prepare(tokenizer, job(), 1000).prompt_tokens > 0
    assert not pooled


def test_long_jobs_go_to_the_pool(tokenizer: native.Tokenizer, pooled: list[Any]) -> None:
    assert native.prepare(tokenizer, job("x" * 2000), 1000).prompt_tokens > 2000
    assert len(pooled) == 1


def test_slow_templates_go_to_the_pool(folder: Path, tmp_path: Path, pooled: list[Any]) -> None:
    file = tmp_path / "slow.jinja"
    file.write_text("{% for i in range(20000) %}{% endfor %}done")
    loaded = native.load_tokenizer(Settings(tokenizer_path=str(folder), chat_template=str(file)))
    assert loaded is not None
    assert native.prepare(loaded, job(), 1000).prompt == "done"
    assert len(pooled) == 1


def test_a_template_without_end_is_a_400(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "endless.jinja"
    loop = "{% for i in range(10000) %}"
    file.write_text(loop * 3 + "{% endfor %}" * 3)
    loaded = native.load_tokenizer(Settings(tokenizer_path=str(folder), chat_template=str(file)))
    assert loaded is not None
    with pytest.raises(errors.InvalidRequestError) as caught:
        native.prepare(loaded, job(), 1000)
    assert caught.value.code == "chat_template_limit"


def test_a_template_that_refuses_is_a_400(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "strict.jinja"
    file.write_text("{{ raise_exception('roles must alternate') }}")
    loaded = native.load_tokenizer(Settings(tokenizer_path=str(folder), chat_template=str(file)))
    assert loaded is not None
    with pytest.raises(errors.InvalidRequestError, match="roles must alternate") as caught:
        native.prepare(loaded, job(), 1000)
    assert (caught.value.code, caught.value.param) == ("chat_template_error", "messages")


def test_too_long_a_prompt(tokenizer: native.Tokenizer) -> None:
    with pytest.raises(errors.ContextLengthError) as caught:
        native.prepare(tokenizer, job("x" * 50, context_length=20), 1000)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        (1, errors.InvalidRequestError, 400),
        (2, errors.ContextLengthError, 400),
        (3, errors.InvalidRequestError, 400),
        (4, errors.InvalidRequestError, 400),
        (6, errors.WorkerProtocolError, 502),
        (7, errors.InternalError, 500),
        (99, errors.InternalError, 500),
    ],
)
def test_every_code_becomes_an_error(code: int, kind: type[errors.RouterError], status: int) -> None:
    error = native.router_error(native.NativeError(code, "words", "field"))
    assert type(error) is kind
    assert error.status == status
    assert ("words" in error.message) == (code < 7)
