"""Requests of all kinds: good ones, ones that are nearly good, and bytes that are hardly HTTP."""

from __future__ import annotations

import copy
import gzip
import json
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from tests.support.app import CHAT, MODEL
from tests.support.fields import BASES, COMPLETIONS, EMBEDDINGS, OPERATORS
from tests.support.openapi import described

GENERATING: Final = "qwen3-sim"
EMBEDDING: Final = "embed-sim"
ADMIN_KEY: Final = "root"
FAULTS: Final = (
    *("break-midway", "abort-first", "abort-midway", "speak-garbage", "end-early"),
    *("refuse-input", "out-of-memory"),
)
"""Words that make the worker fail."""
SLOW: Final = ("go-slowly", "hang-midway", "hang-first")
"""Words whose answer only those wait for who leave."""


@dataclass(frozen=True)
class Sent:
    """One request and how its client behaves."""

    method: str
    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    odd: bool = False
    """Not quite HTTP: gunicorn may refuse it in its own words, or close the connection."""
    leaves_after: int | None = None
    """The client goes once it has read so many bytes; after 0 at once."""
    faults: bool = False
    """The worker fails, or may."""
    declared: int | None = field(default=None, repr=False)
    """Content-Length, if it is not the body's."""

    @property
    def wire(self) -> bytes:
        """The request's bytes."""
        head = [f"{self.method} {self.path} HTTP/1.1".encode("latin-1"), b"Host: x"]
        head += [name + b": " + value for name, value in self.headers]
        names = {name.lower() for name, _ in self.headers}
        if b"transfer-encoding" not in names and b"content-length" not in names:
            length = len(self.body) if self.declared is None else self.declared
            head.append(b"Content-Length: " + str(length).encode())
        return b"\r\n".join(head) + b"\r\n\r\n" + self.body


# Values

TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(), max_size=6),  # lone surrogates, too
    st.sampled_from(["", "\0", "\x7f", "\ud800", "\udfff\ud800", "<|im_start|>", "<|im_end|>", "</think>"]),
    st.sampled_from(["<tool_call>", "{{ 7 * 7 }}", "{% for %}", "𠜎" * 5, "é" * 300, "\u202e", "a\r\nX: y"]),
    st.sampled_from(["$ref", "#/$defs/a", "((a+)+)+$", 'root ::= "a"', '{"type": "object"}', "-1", "true"]),
)
NUMBERS = st.one_of(
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**25, -0.0, 1e-320, 1e308, 0.1, 1.0, 2.0]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
KEYS = st.one_of(
    st.sampled_from(
        ["type", "function", "name", "parameters", "text", "role", "content", "$defs", "json_schema"]
    ),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
WORDS = st.one_of(
    st.sampled_from(["say-text", "in-chunks", "hello there", "schön 你好"]),
    st.sampled_from(FAULTS),
    TEXTS,
)


# Bodies


def fields_of(path: str) -> list[str]:
    """The fields that the description has for a route's requests."""
    schemas = described()["components"]["schemas"]
    body = described()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    names = [name] if "properties" in schemas[name] else ["TokenizeTextRequest", "TokenizeChatRequest"]
    return sorted({field for one in names for field in schemas[one]["properties"]})


PATHS: Final = tuple(path for path in BASES if path not in OPERATORS)
FIELDS: Final = {path: fields_of(path) for path in PATHS}
SAMPLING: Final = sorted(described()["components"]["schemas"]["SamplingParams"]["properties"])
LIMITED: Final = {CHAT: "max_tokens", COMPLETIONS: "max_tokens"}


@st.composite
def good_bodies(draw: st.DrawFn, path: str, words: st.SearchStrategy[str] = WORDS) -> dict[str, Any]:
    """A request that is accepted (or nearly so), with a short answer."""
    body: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(BASES[path])))
    if body.get("model") == MODEL:
        body["model"] = EMBEDDING if path == EMBEDDINGS else GENERATING
    word = draw(words)
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": word}, *body["messages"]]
        if draw(st.booleans()):
            body["messages"].reverse()
    for name in ("prompt", "text", "input"):
        if isinstance(body.get(name), str):
            body[name] = draw(st.sampled_from([word, [word, "x"]]))
    if path in LIMITED and draw(st.booleans()):
        body[LIMITED[path]] = draw(st.integers(1, 12))
    if "stream" in FIELDS[path] and draw(st.booleans()):
        body["stream"] = True
        if path == CHAT and draw(st.booleans()):
            body["stream_options"] = {"include_usage": draw(st.booleans())}
    elif "stream_options" in body:
        body.pop("stream_options")
        body.pop("stream", None)
    return body


@st.composite
def changed_bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A good request with one to three fields of any values."""
    body = draw(good_bodies(path))
    for _ in range(draw(st.integers(1, 3))):
        place = body
        if isinstance(body.get("sampling_params"), dict) and draw(st.booleans()):
            body["sampling_params"][draw(st.sampled_from(SAMPLING))] = draw(VALUES)
            continue
        while draw(st.booleans()):  # somewhere deeper
            holders = [item for item in place.values() if isinstance(item, dict) and item]
            holders += [
                item[0]
                for item in place.values()
                if isinstance(item, list) and item and isinstance(item[0], dict) and item[0]
            ]
            if not holders:
                break
            place = draw(st.sampled_from(holders))
        names = FIELDS[path] if place is body else sorted(place)
        place[draw(st.one_of(st.sampled_from(names), st.sampled_from(names), KEYS))] = draw(VALUES)
    return body


@st.composite
def encoded(draw: st.DrawFn, value: Any) -> bytes:
    """JSON as some client may write it: NaN, escapes, raw surrogates, keys that come twice."""
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
    if isinstance(value, dict) and value and draw(st.integers(0, 9)) == 0:
        again = draw(st.sampled_from(sorted(value)))
        text = text[:-1] + f", {json.dumps(again)}: {json.dumps(draw(VALUES))}}}"
    return text.encode("utf-8", "surrogatepass")


@st.composite
def broken_bodies(draw: st.DrawFn, path: str) -> bytes:
    """No JSON of a request at all, or one that was damaged on its way."""
    body = draw(encoded(draw(good_bodies(path))))
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return body[: draw(st.integers(0, len(body)))]
    if kind == 1:
        at = draw(st.integers(0, len(body)))
        return body[:at] + draw(st.binary(min_size=1, max_size=8)) + body[at:]
    if kind == 2:
        depth = draw(st.sampled_from([10, 63, 65, 900, 1100, 100_000]))
        opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
        name = draw(st.sampled_from(FIELDS[path])).encode()
        return body[:-1] + b', "' + name + b'": ' + opening * depth + b"1" + closing * depth + b"}"
    if kind == 3:
        return json.dumps(draw(VALUES)).encode("utf-8", "surrogatepass")
    if kind == 4:
        encoding = draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "latin-1"]))
        return body.decode("utf-8", "replace").encode(encoding, "replace")
    if kind == 5:
        return draw(st.binary(max_size=60))
    if kind == 6:
        return body + draw(st.sampled_from([b"}", b" ", b"\0", b"{}", b"\n\n", body]))
    name = draw(st.sampled_from(FIELDS[path])).encode()
    digits = draw(st.sampled_from([b"1" * 400, b"1" * 5000, b"1e400", b"-1e-400", b"0.1" + b"0" * 3000]))
    return body[:-1] + b', "' + name + b'": ' + digits + b"}"


# HTTP

JSON_TYPE: Final = (b"Content-Type", b"application/json")
CONTENT_TYPES = st.sampled_from(
    [
        *(b"application/json; charset=utf-16", b"text/plain", b"application/x-www-form-urlencoded", b""),
        *(b"multipart/form-data; boundary=x", b"multipart/form-data", b"\xff\xfe", b"application/json;;;="),
    ]
)
HARMLESS = st.sampled_from(
    [
        (b"X-Request-Id", b"a" * 500),
        (b"X-Request-Id", b"\xe9\xff"),
        (b"Authorization", b"Bearer \xf0\x9f"),
        (b"Accept", b"text/html"),
        (b"Accept-Encoding", b"gzip, br"),
        (b"Content-Encoding", b"gzip"),
        (b"Cookie", b"a=b; c"),
        (b"X-Forwarded-For", b"'\"<>"),
        (b"Connection", b"close"),
        (b"X-Empty", b""),
    ]
)
ODD = st.sampled_from(
    [
        (b"Content-Length", b"+5"),
        (b"Content-Length", b"5, 5"),
        (b"Content-Length", b"9" * 30),
        (b"Content-Length", b"0"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Transfer-Encoding", b"gzip, chunked"),
        (b"Transfer-Encoding", b"xchunked"),
        (b"Expect", b"100-continue"),
        (b"Expect", b"nonsense"),
        (b"X Bad", b"x"),
        (b"X-Long", b"x" * 9000),
        (b"X-Null", b"a\0b"),
        (b"Upgrade", b"h2c"),
        (b"Host", b"two"),
    ]
)
METHODS = st.sampled_from(
    ["POST"] * 50 + ["GET", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "TRACE", "QUX"]
)
OTHER_PATHS = st.sampled_from(
    [
        *("/", "/v1", "/v1/", "/health", "/liveness", "/readiness", "/v1/models", "/v1/models/qwen3-sim"),
        *("/v1/models/%00", "/v1/models/..%2f", "/v1/models/" + "x" * 2000, "/health?" + "a=b&" * 50),
        *(
            "/get_model_info",
            "/get_server_info",
            "/get_loads",
            "/get_loads?include=core,%ff",
            "/openapi.json",
        ),
        *("/get_loads?dp_rank=-1", "/get_loads?dp_rank=0", "/flush_cache", "/health_generate", "/metrics"),
        *("/workers", "/workers/0123456789abcdef"),
        *("//v1/chat/completions", "/v1/chat/completions/", "/%e2%82", "/v1/responses", "*"),
    ]
)
LEAVING = st.one_of(st.none(), st.none(), st.sampled_from([0, 0, 1, 10, 300, 900]))


@st.composite
def plain(draw: st.DrawFn) -> Sent:
    """A request to a route that takes bodies."""
    path = draw(st.sampled_from(PATHS))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        body = draw(encoded(draw(good_bodies(path))))
    elif kind < 3:
        body = draw(encoded(draw(changed_bodies(path))))
    else:
        body = draw(broken_bodies(path))
    content = JSON_TYPE if draw(st.integers(0, 4)) else (b"Content-Type", draw(CONTENT_TYPES))
    extra = draw(st.lists(HARMLESS, max_size=2, unique_by=lambda header: header[0]))
    method = draw(METHODS)
    faults = any(word.encode() in body for word in FAULTS)
    headers = (content, *extra)
    return Sent(method, path, body, headers, leaves_after=draw(LEAVING), faults=faults)


@st.composite
def slow(draw: st.DrawFn) -> Sent:
    """A request whose answer does not end; the client leaves."""
    path = draw(st.sampled_from([path for path in PATHS if "stream" in FIELDS[path]]))
    body = draw(encoded(draw(good_bodies(path, st.sampled_from(SLOW)))))
    return Sent("POST", path, body, (JSON_TYPE,), leaves_after=draw(st.sampled_from([0, 0, 1, 200])))


@st.composite
def odd(draw: st.DrawFn) -> Sent:
    """Hardly HTTP."""
    path = draw(st.one_of(st.sampled_from(PATHS), OTHER_PATHS))
    body = draw(encoded(draw(good_bodies(CHAT)))) if draw(st.booleans()) else draw(st.binary(max_size=40))
    kind = draw(st.integers(0, 3))
    headers = [JSON_TYPE]
    declared = None
    if kind == 0:
        declared = len(body) + draw(st.sampled_from([-5, -1, 1, 100]))
    elif kind == 1:
        headers.append((b"Transfer-Encoding", b"chunked"))
        size = max(1, draw(st.integers(1, 100)))
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
        body = b"".join(chunks) + draw(
            st.sampled_from([b"0\r\n\r\n", b"", b"0\r\n", b"zz\r\n", b"-1\r\n\r\n"])
        )
    elif kind == 2:
        body = gzip.compress(body, mtime=0)
        headers.append((b"Content-Encoding", b"gzip"))
    headers += draw(st.lists(ODD, min_size=kind == 3, max_size=2, unique_by=lambda header: header[0]))
    if declared is not None:
        declared = max(declared, 0)
    method, leaves = draw(METHODS), draw(LEAVING)
    return Sent(
        method, path, body, tuple(headers), odd=True, leaves_after=leaves, faults=True, declared=declared
    )


@st.composite
def elsewhere(draw: st.DrawFn) -> Sent:
    """Another route, or none."""
    path = draw(OTHER_PATHS)
    method = draw(METHODS | st.just("GET"))
    headers = draw(st.sampled_from([(), ((b"Authorization", b"Bearer " + ADMIN_KEY.encode()),)]))
    body = draw(st.binary(max_size=20))
    return Sent(method, path, body, headers, odd=path == "*", leaves_after=draw(LEAVING))


REQUESTS = st.one_of(plain(), plain(), plain(), plain(), plain(), slow(), odd(), elsewhere())
