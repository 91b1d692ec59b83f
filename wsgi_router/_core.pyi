"""The native core as Python sees it. ``wsgi_router.native`` alone imports it."""

from collections.abc import Callable, Iterable, Sequence
from mmap import mmap
from typing import Any, Protocol

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
    """Handles alive in this process: ``tokenizers``, ``prepared``, ``streams``, ``followers`` …"""

def settle_heap() -> None:
    """Makes the heap ready for forks: what is free goes back to the system, or is never used again."""

def json_work(body: bytes) -> int:
    """How much work it is to decode a JSON text: its values and escapes, weighted. Takes any bytes."""

def first_failure(message: bytes) -> str | None:
    """The worker's words if a first GenerateResponse says that it gave the request up."""

def plain_head(
    data: bytes, environ: dict[str, Any], line: int, headers: int, header: int
) -> tuple[int, int, bool] | None:
    """Adds to a WSGI environ what the plain head of a request says, with which ``data`` begins.

    The bounds: bytes of the request line, number of headers, bytes of a header's line. Returns where the
    body begins, its length, and whether the connection closes after it; None if the head is not plain, or
    not whole.
    """

def header_lines(headers: list[tuple[str, str]], own: Callable[[str], bool]) -> tuple[str, int | None] | None:
    """An answer's headers as lines, and Content-Length; None where the server has to look at them itself.

    ``own``: whether a name is one that the server leaves out, or takes for a sign; the same for all answers.
    """

class Tokenizer:
    """A tokenizer with its chat template; immutable, usable by all threads.

    ``path``: a folder with tokenizer.json or a file of tiktoken ranks, or the file. ``chat_template``:
    template text that replaces the folder's own. Raises ``NativeError`` with one clear line when something
    cannot be loaded; its ``param`` is "chat_template" if that is at fault. ``prompt_cache``: bytes that the
    ids of earlier prompts may take.
    """

    info: dict[str, Any]
    def __init__(self, path: str, chat_template: str | None = None, prompt_cache: int = 0) -> None: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...
    def render(self, job: bytes, fuel: int = 0) -> str:
        """The prompt of a job (see ARCHITECTURE.md, "The job"); ``fuel`` 0 is the default."""

    def prepare(self, job: bytes, fuel: int = 0) -> Prepared: ...

class Prepared:
    prompt_tokens: int
    #: How many of them the prompt cache had.
    reused_tokens: int
    max_new_tokens: int | None
    prompt: str
    #: GenerateRequest without its request_id.
    body: bytes
    def token_ids(self) -> list[int]: ...
    def prefix(self, count: int) -> bytes:
        """The first ``count`` token ids, or all, as unsigned 32-bit integers in the machine's order."""

#: Tokens in a block of a prompt, as prefixes are counted.
PREFIX_BLOCK: int

class PrefixTable:
    """Which worker has which prompts' beginnings, in ``memory`` that processes may share.

    ``memory``: zeros, but for its first eight bytes, which are the server's own random ones. Columns are
    those of the workers. Bounded: what was used longest ago goes.
    """

    def __init__(self, memory: mmap | bytearray) -> None: ...
    def prompt(self, prepared: Prepared, adapter: str = "") -> Prompt:
        """A prompt's blocks; with a LoRA adapter's name, under which it has a KV cache of its own."""

    def is_fed(self, column: int) -> bool:
        """Whether all that the worker has is known by its own events."""

    def clear(self, column: int) -> None:
        """Nothing is known of a worker any more."""

    def follow(self, column: int) -> Follower:
        """Begins to follow the worker's own events."""

class Prompt:
    """The whole blocks of a prompt."""

    blocks: int
    def known(self, columns: Sequence[int]) -> list[tuple[int, int]]:
        """For each column the blocks of this prompt, from its beginning, and those in all, that it has."""

    def note(self, column: int) -> None:
        """It is sent to that worker."""

class Follower:
    """Follows a worker's KV events; used by one thread at a time."""

    def apply(self, message: bytes) -> tuple[int, bool, bool]:
        """Takes a raw KvEventBatch in. Raises ``NativeError``.

        Returns the number of the last one that was taken, whether all is known, and whether batches before
        this one are missing, in which case it was not taken.
        """

    def close(self) -> None:
        """The worker's events are not heard any more; what it is sent counts instead. Idempotent."""

class Stream:
    """The answer to one request, all its choices; used by one thread at a time, and by calls that feed it."""

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

    def lend(self, descriptor: int) -> None:
        """From here on what is ready is written to this socket as HTTP/1.1 chunks, by whoever feeds."""

    def rest(self) -> bytes:
        """What the socket did not take: bytes that are chunks already."""

    def resume(self) -> None:
        """The rest is sent: go on."""

    def reclaim(self) -> int:
        """Takes the socket back; returns how many bytes of content were given to it. ``rest`` may follow."""

    def ping(self, data: bytes, idle_seconds: float) -> None:
        """Writes a chunk if nothing was written for so long."""

class Call:
    """A call to a worker."""

    def close(self) -> None:
        """Cancels it if it still runs; no event follows. Idempotent."""

    def withdraw(self) -> bool:
        """``close``, unless a message was fed: then the call goes on, and this is False."""

    def hold(self) -> None:
        """Holds what the worker sends until ``give``. Before ``Net.submit``."""

    def give(self, message: bytes) -> None:
        """Delivers a message before the worker's own, which were held; the first time only."""

class CallSink(Protocol):
    """What ``Net.deliver`` calls."""

    def fed(self, flags: int, message: bytes | None, /) -> None:
        """The answer has taken messages in; ``flags`` or-ed. ``message``: the one that led to FAILED."""

    def message(self, message: bytes, /) -> None: ...
    def blocked(self) -> None:
        """The lent socket takes no more; see ``Stream.rest``."""

    def ended(self, status: int, details: str, silent: bool, /) -> None:
        """The end, with a gRPC status; ``silent``: nothing came before its deadline."""

class UnarySink(Protocol):
    def message(self, message: bytes, /) -> None: ...
    def ended(self, status: int, details: str, silent: bool, /) -> None: ...

class Net:
    """Calls to workers over HTTP/2, in a thread of its own; to be made after the fork.

    ``options``: JSON, see ``net::Options``; ``roots``: PEM, for TLS. URLs are grpc://HOST:PORT or grpcs://HOST:PORT.
    """

    def __init__(self, options: bytes, roots: bytes = b"") -> None: ...
    def fileno(self) -> int:
        """Readable when ``deliver`` has something to do."""

    def deliver(self) -> None:
        """Tells the sinks what has happened."""

    def generate(
        self,
        url: str,
        request: bytes,
        stream: Stream | None,
        choice: int,
        first_seconds: float,
        token_seconds: float,
        sink: CallSink,
    ) -> Call:
        """Generate, which starts with ``submit``. Messages are fed to ``stream``, if any, or to ``sink``."""

    def submit(self) -> None:
        """Starts all calls of ``generate`` that wait for it."""

    def unary(self, url: str, method: str, request: bytes, seconds: float, sink: UnarySink) -> Call:
        """Starts a call with a deadline, or none if it is infinite. It may have several answers."""

    def forget(self, url: str) -> None:
        """Drops the connections to a worker."""

    def heard(self, url: str) -> float | None:
        """Seconds since anything of a call came from a worker."""

    def close(self) -> None:
        """Cancels all calls and ends the thread. Idempotent."""
