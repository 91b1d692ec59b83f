"""The corpus of real chat templates: by the core, and by transformers."""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wsgi_router import native

from . import tiny
from .conversations import Case, Message, Messages
from .processes import ROOT

FOLDER = ROOT / ".cache/templates"
NPM = ("qwen3", "llama3_1", "llama3", "gemma3", "deepseek_v3")
RECORD = ROOT / "tests/cases/chat_templates.json"
REFUSED = "refused"
#: Saturday, 6 July 2024, noon UTC: the date that templates print.
NOW = 1_720_267_200


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Clock:
        return cls.fromtimestamp(NOW)


@dataclass(frozen=True)
class Template:
    name: str
    source: str
    special_tokens: dict[str, str]


@functools.cache
def record() -> dict[str, dict[str, Any]]:
    """For each template the form of messages it reads, where not the common one, and the counts.

    The common form: content as text, `developer` as system, arguments as a dict, null left out.
    `content`: role → "parts" or "both". `beside_calls`, `missing`: what stands for assistants' null content,
    with calls and without. `cases`, `refused`: conversations in all, and those that transformers refuses.
    `refuses_calls`, `leaves_out`: what the template makes of a conversation with a call.
    """
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def names() -> tuple[str, ...]:
    return tuple(record())


@functools.cache
def template(name: str) -> Template:
    folder = ROOT / ".cache/smollm2/tokenizer" if name == "smollm2" else ROOT / ".cache/models" / name
    config = folder / "tokenizer_config.json"
    if name in NPM or name == "smollm2":
        if not config.exists():
            pytest.fail(f"the tokenizer {name} is missing: `make models` fetches it")
        return _of_config(name, json.loads(config.read_text()))
    path = FOLDER / f"{name}.jinja"
    if not path.exists():
        pytest.fail(f"the template {name} is missing: `make models` fetches it")
    # open() would turn every line end into \n.
    source = path.read_bytes().decode()
    return Template(name, source, {"bos_token": "<s>", "eos_token": "</s>"})


def _of_config(name: str, config: dict[str, Any]) -> Template:
    tokens = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            tokens[key] = text
    return Template(name, config["chat_template"], tokens)


def core(made: Template, folder: Path) -> native.Tokenizer:
    """The core's tokenizer with this template, of files in `folder`."""
    tiny.write(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(made.special_tokens))
    return native.Tokenizer(str(folder), made.source)


def rendered(tokenizer: native.Tokenizer, case: Case) -> str:
    """What the core makes of a case; REFUSED for what is the template's or the client's fault."""
    job = {**case, "now": NOW}
    job["chat_template_kwargs"] = job.pop("kwargs", {})
    try:
        return tokenizer.render(json.dumps(job).encode())
    except native.NativeError as error:
        return REFUSED if error.code in (1, 3) and error.message else f"{error.code}: {error.message}"


class Reference:
    """transformers with one template; `forms` as in the record."""

    def __init__(self, made: Template, forms: dict[str, Any] | None = None) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import tokenizers
        import transformers

        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
        make: Any = transformers.PreTrainedTokenizerFast
        self.tokenizer = make(tokenizer_object=backend, **made.special_tokens)
        self.tokenizer.chat_template = made.source
        self.template = made
        self.forms = forms or {}

    def rendered(self, case: Case) -> str:
        """What transformers makes of a case, its messages in the form that the template reads."""
        given = {key: value for key, value in case.items() if key not in ("messages", "kwargs")}
        messages = self.as_read(case["messages"])
        kwargs = case.get("kwargs", {})
        try:
            with _clock():
                if self.forms.get("beside_calls") == "none":
                    return self._with_none(messages, given, kwargs)
                text = self.tokenizer.apply_chat_template(messages, tokenize=False, **given, **kwargs)
        except Exception:  # whatever it refuses with
            return REFUSED
        assert isinstance(text, str)
        return text

    def _with_none(self, messages: Messages, given: dict[str, Any], kwargs: dict[str, Any]) -> str:
        from transformers.utils import chat_template_utils

        if not messages:
            return REFUSED
        special = self.tokenizer.special_tokens_map
        done = chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=self.template.source, **given, **{**special, **kwargs}
        )
        text = done[0][0]
        assert isinstance(text, str)
        return text

    def as_read(self, messages: Messages) -> Messages:
        return [self._message(message) for message in messages]

    def _message(self, message: Message) -> Message:
        made = {key: value for key, value in message.items() if value is not None}
        role = made.get("role")
        content = self.forms.get("content", {})
        kind = {"developer": "system"}.get(str(role), str(role))
        form = content.get(kind if kind in ("system", "assistant", "tool") else "user", "text")
        given = made.get("content")
        if isinstance(given, list) and form == "text":
            made["content"] = " ".join(part["text"] for part in given)
        if isinstance(given, str) and form == "parts":
            made["content"] = [{"type": "text", "text": given}]
        if role == "developer" and not self.forms.get("developer"):
            made["role"] = "system"
        if role == "assistant":
            self._fill(made)
        if self.forms.get("arguments") == "text" and made.get("tool_calls"):
            made["tool_calls"] = [_as_text(call) for call in made["tool_calls"]]
        return made

    def _fill(self, made: Message) -> None:
        calls = bool(made.get("tool_calls"))
        filler = self.forms.get("beside_calls" if calls else "missing", "absent")
        if filler == "empty":
            made.setdefault("content", "")
        if filler == "none" and not made.get("content"):
            made["content"] = None


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": text}}


@contextmanager
def _clock() -> Iterator[None]:
    from transformers import utils

    chat_template_utils: Any = utils.chat_template_utils
    real = chat_template_utils.datetime
    chat_template_utils.datetime = _Clock
    try:
        yield
    finally:
        chat_template_utils.datetime = real
