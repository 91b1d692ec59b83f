"""The native core as Python sees it. ``wsgi_router.native`` alone imports it."""

from collections.abc import Iterable
from typing import Any

#: Flags that ``Stream.feed`` and ``Stream.end`` return, or-ed.
OUTPUT: int
CHOICE_DONE: int
CANCEL: int
ALL_DONE: int
FAILED: int

#: Codes of ``NativeError``; those that are not here are ours to mend.
INVALID_REQUEST: int
CONTEXT_LENGTH: int
TEMPLATE: int
FUEL: int
WORKER: int

#: Upper bounds in seconds of ``Stream.stats()["itl_buckets"]``, which has one bucket more.
ITL_BOUNDS: tuple[float, ...]

class NativeError(Exception):
    code: int
    message: str
    param: str
    def __init__(self, code: int, message: str, param: str) -> None: ...

def abi_version() -> int: ...
def live_handles() -> dict[str, int]:
    """Handles alive in this process: ``tokenizers``, ``prepared``, ``streams``."""

def json_work(body: bytes) -> int:
    """How much work it is to decode a JSON text: its values and escapes, weighted. Takes any bytes."""

def first_failure(message: bytes) -> str | None:
    """The worker's words if a first GenerateResponse says that it gave the request up."""

class Tokenizer:
    """A tokenizer with its chat template; immutable, usable by all threads.

    ``path``: a folder with tokenizer.json or a file of tiktoken ranks, or the file. ``chat_template``:
    template text that replaces the folder's own. Raises ``NativeError`` with one clear line when something
    cannot be loaded; its ``param`` is "chat_template" if that is at fault.
    """

    info: dict[str, Any]
    def __init__(self, path: str, chat_template: str | None = None) -> None: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...
    def render(self, job: bytes, fuel: int = 0) -> str:
        """The prompt of a job (see ARCHITECTURE.md, "The job"); ``fuel`` 0 is the default."""

    def prepare(self, job: bytes, fuel: int = 0) -> Prepared: ...

class Prepared:
    prompt_tokens: int
    max_new_tokens: int | None
    prompt: str
    #: GenerateRequest without its request_id.
    body: bytes
    def token_ids(self) -> list[int]: ...

class Stream:
    """The answer to one request, all its choices; used by one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, options: bytes) -> None: ...
    def feed(self, choice: int, message: bytes) -> int:
        """Takes one raw GenerateResponse of a choice; returns flags."""

    def end(self, choice: int) -> int:
        """The choice's RPC ended well; returns flags."""

    def fail(self, error: bytes) -> None:
        """Ends the stream with an error event (``error`` is the whole JSON object) and [DONE]."""

    def take(self) -> bytes:
        """The bytes that are ready for the client, each once."""

    def result(self) -> bytes:
        """The whole answer as JSON (not streaming)."""

    def failure(self) -> str | None:
        """The worker's words if it gave the request up."""

    def stats(self) -> dict[str, Any]:
        """``prompt_tokens``, ``completion_tokens``, ``cached_tokens``, ``reasoning_tokens``,
        ``finish_reasons``; inter-token times: ``itl_buckets`` (counts, not cumulative),
        ``itl_sum`` (seconds), ``itl_count``."""
