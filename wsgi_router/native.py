"""The native core, as the rest of the router sees it: alone imports the extension.

`Stream` is the extension's own class, as it is called for every token; its errors are `NativeError`, which
`router_error` turns into one of ours.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wsgi_router import _core, observability, runtime
from wsgi_router._core import (
    ALL_DONE,
    CANCEL,
    CHOICE_DONE,
    FAILED,
    ITL_BOUNDS,
    OUTPUT,
    Call,
    Follower,
    NativeError,
    Net,
    PrefixTable,
    Prepared,
    Stream,
    Tokenizer,
    first_failure,
    header_lines,
    live_handles,
    plain_head,
    settle_heap,
)
from wsgi_router.errors import (
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    RouterError,
    WorkerProtocolError,
)
from wsgi_router.schema.decode import MOST_WORK
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.workers.policies import reads_prompt

__all__ = [
    "ALL_DONE",
    "CANCEL",
    "CHOICE_DONE",
    "DEFAULT",
    "FAILED",
    "ITL_BOUNDS",
    "OUTPUT",
    "Call",
    "Follower",
    "NativeError",
    "Net",
    "PrefixTable",
    "Prepared",
    "Stream",
    "Tokenizer",
    "Tokenizers",
    "check_texts",
    "check_work",
    "decode",
    "encode",
    "first_failure",
    "header_lines",
    "live_handles",
    "load_tokenizer",
    "load_tokenizers",
    "new_stream",
    "open_tokenizer",
    "plain_head",
    "prefix_table",
    "prepare",
    "read_tokenizers",
    "router_error",
    "settle_heap",
    "share_prefix_table",
    "share_tokenizers",
]

_LOG = logging.getLogger(__name__)

_INLINE_FUEL: Final = 50_000
"""Template steps of a few milliseconds at most; a longer rendering goes to the pool, with the full fuel."""
_PROMPT: Final = re.compile(r"(?:prompt|input_ids|messages)(?![^\[])")
_SLOW_BACKEND: Final = "tokenizers-0.23"
_SLOW_INLINE_BYTES: Final = 4 * 1024
_INLINE_IDS: Final = 16 * 1024
_SEED_BYTES: Final = 8


def router_error(error: NativeError, at: str | None = None) -> RouterError:
    """What an error of the core is to the client. `at`: the path of the prompt, if it is none of messages."""
    param = _renamed(error.param, at) or None
    if error.code == _core.INVALID_REQUEST:
        return InvalidRequestError(error.message, param=param)
    if error.code == _core.CONTEXT_LENGTH:
        return ContextLengthError(error.message, param=param or "messages")
    if error.code == _core.TEMPLATE:
        return InvalidRequestError(error.message, param=param or "messages", code="chat_template_error")
    if error.code == _core.FUEL:
        return InvalidRequestError(error.message, param=param or "messages", code="chat_template_limit")
    if error.code == _core.WORKER:
        return WorkerProtocolError(error.message)
    _LOG.error("the native core failed: %s", error.message)
    return InternalError()


def _renamed(param: str, at: str | None) -> str:
    """The core's name of a part of the job, as the client calls it."""
    if at is not None and (found := _PROMPT.match(param)):
        return at + param[found.end() :]
    return param


_LITTLE: Final = 64 * 1024


def check_work(body: bytes) -> None:
    """Raises InvalidRequestError if decoding `body`, a JSON text, would hold up the other requests.

    The decoder holds the GIL, so that no thread pool helps: what takes too long has to be refused before.
    """
    if len(body) > _LITTLE and runtime.call_in_pool(_core.json_work, body) > MOST_WORK:
        raise InvalidRequestError("The request body holds too many values.", code="too_many_values")


def check_texts(texts: Sequence[str], param: str) -> None:
    """As `check_work`, for JSON texts that stand in the strings of a body's field `param`.

    The core reads them without the GIL; but each value takes a hundred bytes.
    """
    if sum(map(len, texts)) > _LITTLE:
        encoded = [text.encode("utf-8", "replace") for text in texts]
        if runtime.call_in_pool(lambda: sum(map(_core.json_work, encoded))) > MOST_WORK:
            message = f"The JSON texts in '{param}' hold too many values."
            raise InvalidRequestError(message, param=param, code="too_many_values")


DEFAULT: Final = ""
"""In the place of a model's name: of all models that have no tokenizer of their own."""
Tokenizers = Mapping[str, Tokenizer]
"""By models' names; the one of DEFAULT is left out where the workers are asked for theirs."""

_shared: dict[tuple[object, ...], Tokenizers] = {}


def _named(settings: Settings) -> tuple[object, ...]:
    return settings.tokenizer_path, settings.chat_template, settings.tokenizers, settings.chat_templates


def share_tokenizers(settings: Settings, tokenizers: Tokenizers) -> None:
    """Processes forked from now on have these tokenizers for `settings`, and their pages in common."""
    _shared.clear()
    if tokenizers:
        _shared[_named(settings)] = tokenizers


def load_tokenizers(settings: Settings) -> Tokenizers:
    """The shared tokenizers, or what `read_tokenizers` gives. Raises SettingsError."""
    return _shared.get(_named(settings)) or read_tokenizers(settings)


def load_tokenizer(settings: Settings) -> Tokenizer | None:
    """The one of TOKENIZER_PATH, if there is one; else as `load_tokenizers`."""
    return load_tokenizers(settings).get(DEFAULT)


_prefixes: dict[int, PrefixTable] = {}
_making: Final = threading.Lock()


def share_prefix_table(settings: Settings) -> None:
    """Processes forked from now on have the same table of prefixes, if the policy has a use for one."""
    if reads_prompt(settings):
        prefix_table(settings)


def prefix_table(settings: Settings) -> PrefixTable:
    """What is known of the workers' KV caches: the server's, if it has made one, else this process's own.

    Raises SettingsError if there is no memory for it.
    """
    size = settings.cache_index_mib << 20
    if (table := _prefixes.get(size)) is not None:
        return table
    with _making:
        if size not in _prefixes:
            try:
                memory = mmap.mmap(-1, size)  # takes room only as it is filled
            except OSError as error:
                reason = f"{settings.cache_index_mib} MiB cannot be had: {error.strerror}"
                raise SettingsError(f"CACHE_INDEX_MIB: {reason}") from None
            memory[:_SEED_BYTES] = os.urandom(_SEED_BYTES)
            _prefixes.clear()
            _prefixes[size] = PrefixTable(memory)
        return _prefixes[size]


def read_tokenizers(settings: Settings) -> Tokenizers:
    """The tokenizers that the settings name. Starts no thread. Raises SettingsError."""
    templates = _templates(settings)
    named: dict[str, tuple[str, str]] = {}
    if settings.tokenizer_path:
        named = dict.fromkeys((DEFAULT, *templates), ("TOKENIZER_PATH", settings.tokenizer_path))
    named |= {model: (f"TOKENIZERS: {model}", path) for model, path in settings.tokenizers}
    made: dict[tuple[str, str | None], Tokenizer] = {}
    found: dict[str, Tokenizer] = {}
    for model, (setting, path) in named.items():
        template = templates.get(model)
        key = path, template and template.text
        if key not in made:
            made[key] = _named_by(setting, path, template, settings)
        found[model] = made[key]
    return found


def open_tokenizer(folder: Path, model: str, settings: Settings) -> Tokenizer:
    """The tokenizer of a model that the settings name none for. Raises SettingsError."""
    templates = _templates(settings)
    template = templates.get(model, templates.get(DEFAULT))
    return _named_by(f"the tokenizer in {folder}", str(folder), template, settings)


class _Template(NamedTuple):
    """A chat template that a setting names."""

    setting: str
    text: str


def _templates(settings: Settings) -> Mapping[str, _Template]:
    """By model; that of DEFAULT is not for the models in TOKENIZERS."""
    found = {
        model: _read_template(f"CHAT_TEMPLATES: {model}", path) for model, path in settings.chat_templates
    }
    if settings.chat_template:
        found[DEFAULT] = _read_template("CHAT_TEMPLATE", settings.chat_template)
    return found


def _named_by(setting: str, path: str, template: _Template | None, settings: Settings) -> Tokenizer:
    text = template.text if template is not None else None
    try:
        return Tokenizer(path, text, settings.prompt_cache_mib << 20)
    except NativeError as error:
        broken = template if error.param == "chat_template" else None
        name = broken.setting if broken is not None else setting
        raise SettingsError(f"{name}: {' '.join(error.message.split())}") from None


def _read_template(setting: str, path: str) -> _Template:
    try:
        return _Template(setting, Path(path).read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{setting}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{setting}: {path} is not UTF-8") from None


def prepare(tokenizer: Tokenizer, job: bytes, inline_bytes: int, at: str | None = None) -> Prepared:
    """Template, token ids and request of a job; jobs beyond `inline_bytes` do not hold up other requests.

    `at`: the path of the prompt in the client's request, for errors.
    """
    try:
        prepared = _prepare(tokenizer, job, inline_bytes)
    except NativeError as error:
        raise router_error(error, at) from None
    observability.metrics().count_reused(prepared.reused_tokens)
    return prepared


def _prepare(tokenizer: Tokenizer, job: bytes, inline_bytes: int) -> Prepared:
    if len(job) <= _inline(tokenizer, inline_bytes):
        try:
            return tokenizer.prepare(job, _INLINE_FUEL)
        except NativeError as error:
            if error.code != _core.FUEL:
                raise
    return runtime.call_in_pool(tokenizer.prepare, job)


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool, inline_bytes: int) -> list[int]:
    """Token ids of `text`; texts beyond `inline_bytes` do not hold up other requests."""
    try:
        if len(text) <= _inline(tokenizer, inline_bytes):
            return tokenizer.encode(text, add_special_tokens)
        return runtime.call_in_pool(tokenizer.encode, text, add_special_tokens)
    except NativeError as error:
        raise router_error(error) from None


def decode(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    """The text of token ids."""
    try:
        if len(ids) <= _INLINE_IDS:
            return tokenizer.decode(ids, skip_special_tokens)
        return runtime.call_in_pool(tokenizer.decode, ids, skip_special_tokens)
    except NativeError as error:
        raise router_error(error) from None


def _inline(tokenizer: Tokenizer, inline_bytes: int) -> int:
    slow = tokenizer.info.get("backend") == _SLOW_BACKEND
    return min(inline_bytes, _SLOW_INLINE_BYTES) if slow else inline_bytes


def new_stream(tokenizer: Tokenizer, options: bytes) -> Stream:
    """The answer's state machine. `options`: JSON, see preprocess."""
    try:
        return _core.Stream(tokenizer, options)
    except NativeError as error:
        raise router_error(error) from None
