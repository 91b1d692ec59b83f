"""A worker's messages in, the client's bytes out: whole cases as files, byte for byte.

A case: `worker` (messages as protobuf JSON, `raw` bytes in hexadecimal, or `end` of the RPC), `flags` that
each of them returns when streamed, `failure` (how the core's words for it begin), `fail` (the error that ends
the response), `stream` (the data of each event) and `aggregate` (null if there is none).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from tests.support import answers, byte_fallback, tiny
from tests.support.processes import ROOT
from wsgi_router import native
from wsgi_router.pb import sglang_scheduler_pb2 as pb

CASES = sorted((ROOT / "tests/cases/stream").glob("*.json"))
WRITERS: dict[str, Callable[[Path], Path]] = {"tiny": tiny.write, "byte_fallback": byte_fallback.write}
FLAGS = ("OUTPUT", "CHOICE_DONE", "CANCEL", "ALL_DONE", "FAILED")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, native.Tokenizer]:
    return {
        name: native.Tokenizer(str(write(tmp_path_factory.mktemp(name)))) for name, write in WRITERS.items()
    }


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return case


def feed(stream: native.Stream, item: dict[str, Any]) -> int:
    if item.get("end"):
        return stream.end(item["choice"])
    if "raw" in item:
        return stream.feed(item["choice"], bytes.fromhex(item["raw"]))
    message = json_format.ParseDict(item["message"], pb.GenerateResponse())
    return stream.feed(item["choice"], message.SerializeToString())


def compact(value: Any) -> str:
    """What is no string is compared as the JSON that the core writes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def flag_names(flags: int) -> list[str]:
    return [name for name in FLAGS if flags & getattr(native, name)]


def new_stream(case: dict[str, Any], tokenizer: native.Tokenizer, streaming: bool) -> native.Stream:
    return native.Stream(tokenizer, json.dumps({**case["options"], "streaming": streaming}).encode())


def check_failure(case: dict[str, Any], stream: native.Stream) -> None:
    words = stream.failure()
    if "failure" not in case:
        assert words is None
    else:
        assert words is not None
        assert words.startswith(case["failure"])


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_bytes_of_a_stream(path: Path, tokenizers: dict[str, native.Tokenizer]) -> None:
    case = load(path)
    stream = new_stream(case, tokenizers[case["tokenizer"]], True)
    out, flags = b"", []
    for item in case["worker"]:
        flags.append(flag_names(feed(stream, item)))
        out += stream.take()
    check_failure(case, stream)
    if "fail" in case:
        stream.fail(compact(case["fail"]).encode())
        out += stream.take()
    assert out.decode() == "".join(f"data: {compact(event)}\n\n" for event in case["stream"])
    assert flags == case["flags"]
    assert stream.take() == b""
    assert stream.result() == b""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_bytes_of_an_aggregate(path: Path, tokenizers: dict[str, native.Tokenizer]) -> None:
    case = load(path)
    stream = new_stream(case, tokenizers[case["tokenizer"]], False)
    flags = [feed(stream, item) for item in case["worker"]]
    check_failure(case, stream)
    assert not any(flag & native.OUTPUT for flag in flags)
    expected = [[name for name in names if name != "OUTPUT"] for names in case["flags"]]
    assert [flag_names(flag) for flag in flags] == expected
    if "fail" in case:
        stream.fail(compact(case["fail"]).encode())
    aggregate = "" if case["aggregate"] is None else compact(case["aggregate"])
    assert stream.result().decode() == aggregate
    assert stream.take() == b""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_bytes_taken_late_are_the_same(path: Path, tokenizers: dict[str, native.Tokenizer]) -> None:
    """A slow client takes all at once."""
    case = load(path)
    stream = new_stream(case, tokenizers[case["tokenizer"]], True)
    for item in case["worker"]:
        feed(stream, item)
    if "fail" in case:
        stream.fail(compact(case["fail"]).encode())
    expected = "".join(f"data: {compact(event)}\n\n" for event in case["stream"])
    assert stream.take().decode() == expected


def test_stats_tell_what_the_usage_event_does(tokenizers: dict[str, native.Tokenizer]) -> None:
    for path in CASES:
        case = load(path)
        if not isinstance(case["aggregate"], dict):
            continue
        stream = new_stream(case, tokenizers[case["tokenizer"]], True)
        for item in case["worker"]:
            feed(stream, item)
        stats, usage = stream.stats(), case["aggregate"]["usage"]
        assert stats["prompt_tokens"] == usage["prompt_tokens"], path
        assert stats["completion_tokens"] == usage["completion_tokens"], path
        assert stats["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"], path
        assert stats["reasoning_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"], path
        reasons = [choice["finish_reason"] for choice in case["aggregate"]["choices"]]
        assert sorted(stats["finish_reasons"]) == sorted(reasons), path
        assert sum(stats["itl_buckets"]) == stats["itl_count"]
        assert len(stats["itl_buckets"]) == len(native.ITL_BOUNDS) + 1


def test_a_first_failure_is_an_abort_and_nothing_else() -> None:
    assert native.first_failure(answers.complete([], 0, "abort")) == "The worker aborted the request."
    assert native.first_failure(answers.complete([], 0, "abort: no memory")) == "no memory"
    assert native.first_failure(answers.complete([1], 1, "stop")) is None
    assert native.first_failure(answers.chunk([1], 1)) is None
    assert native.first_failure(b"") is None
    assert native.first_failure(b"\x0a\xff\xff") is None


def test_an_error_with_line_ends_is_one_event(tokenizers: dict[str, native.Tokenizer]) -> None:
    stream = native.Stream(tokenizers["tiny"], answers.options(streaming=True))
    stream.fail(b'{\n"error": {}\r\n}')
    assert stream.take() == b'data: { "error": {}  }\n\ndata: [DONE]\n\n'
    stream.fail(b'{"error": {}}')
    assert stream.take() == b""


def test_a_choice_that_there_is_not(tokenizers: dict[str, native.Tokenizer]) -> None:
    stream = native.Stream(tokenizers["tiny"], answers.options(streaming=True))
    with pytest.raises(native.NativeError, match="choice 1") as caught:
        stream.feed(1, answers.chunk([97], 1))
    assert caught.value.code == 7
    assert stream.feed(0, answers.complete([97], 1)) & native.ALL_DONE


@pytest.mark.parametrize(
    "options", [b"", b"{}", b"[]", b"{", b'{"id":"a","created":1,"model":"m","unknown":1}']
)
def test_options_that_cannot_be_read(options: bytes, tokenizers: dict[str, native.Tokenizer]) -> None:
    with pytest.raises(native.NativeError) as caught:
        native.Stream(tokenizers["tiny"], options)
    assert caught.value.code == 7
