"""The simulator as a process, over real gRPC: answers, text, faults, refusals."""

from __future__ import annotations

import hashlib
import io
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, Worker, wait_until
from tests.support.scheduler import (
    SchedulerClient,
    chunk_ids,
    completes,
    generate_request,
    refused,
)
from tests.support.simulator import EOS, FLAGS
from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.simulator import __main__ as simulator


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(*FLAGS) as worker:
        yield worker


@pytest.fixture
def client(worker: Worker) -> Iterator[SchedulerClient]:
    with SchedulerClient(worker.port) as client:
        yield client


# The official stubs


OFFICIAL = """
import sys
import grpc
from smg_grpc_proto import sglang_scheduler_pb2 as pb, sglang_scheduler_pb2_grpc
from smg_grpc_proto.generated import common_pb2
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)
    neutral = dict(temperature=1, top_p=1, top_k=-1, repetition_penalty=1, n=1, max_new_tokens=3)
    def ask(**extra):
        return pb.GenerateRequest(request_id="o", tokenized=pb.TokenizedInput(input_ids=[1, 2]),
                                  sampling_params=pb.SamplingParams(**neutral), **extra)
    *chunks, last = stub.Generate(ask(stream=True), timeout=10)
    streamed = [token for event in chunks for token in event.chunk.token_ids]
    (whole,) = stub.Generate(ask(), timeout=10)
    assert streamed == list(whole.complete.output_ids) and len(streamed) == 3, (streamed, whole)
    assert last.complete.finish_reason == "length"
    assert stub.HealthCheck(pb.HealthCheckRequest(), timeout=10).healthy
    assert stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=10).served_model_name == "simulated"
    assert stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10).scheduler_info["finished"] == 2
    assert stub.GetLoads(pb.GetLoadsRequest(), timeout=10).loads[0].num_total_reqs == 0
    assert stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=10).success
    assert not stub.Abort(pb.AbortRequest(request_id="o"), timeout=10).success
    print("spoken")
"""


def test_the_official_stubs_can_talk_to_it() -> None:
    with Worker() as worker:
        command = [sys.executable, "-c", OFFICIAL, f"127.0.0.1:{worker.port}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.stdout == "spoken\n", run.stderr


# Answers


def test_a_stream_ends_with_the_last_ids_again(client: SchedulerClient) -> None:
    events = client.generate("a", [101], sampling={"ignore_eos": True})
    assert [list(e.chunk.token_ids) for e in events[:-1]] == [[7, 8], [9], [2, 10]]
    complete = events[-1].complete
    assert list(complete.output_ids) == [2, 10]
    assert (complete.finish_reason, complete.prompt_tokens, complete.completion_tokens) == ("stop", 1, 5)
    assert {e.request_id for e in events} == {"a"}


def test_the_stop_id_is_part_of_the_answer(client: SchedulerClient) -> None:
    for sampling, wanted, matched in (
        ({}, [7, 8, 9, 2], EOS),
        ({"stop_token_ids": [8]}, [7, 8], 8),
        ({"min_new_tokens": 2, "stop_token_ids": [8]}, [7, 9, 2], EOS),
    ):
        (event,) = client.generate("a", [101], stream=False, sampling=sampling)
        complete = event.complete
        assert list(complete.output_ids) == wanted, sampling
        assert (complete.finish_reason, complete.matched_token_id) == ("stop", matched)


def test_the_limit_ends_with_length(client: SchedulerClient) -> None:
    for most, wanted in ((0, []), (2, [7, 8]), (4, [7, 8, 9, 2])):
        (event,) = client.generate("a", [101], stream=False, sampling={"max_new_tokens": most})
        assert list(event.complete.output_ids) == wanted
        assert event.complete.finish_reason == "length"
        assert event.complete.WhichOneof("matched_stop") is None
    ids = chunk_ids(client.generate("b", [1, 2, 3], sampling={"max_new_tokens": 37}))
    assert len(ids) == 37
    assert len(set(ids)) > 20
    assert EOS not in ids


def test_the_context_ends_with_length(client: SchedulerClient) -> None:
    prompt = list(range(200, 999))
    (event,) = client.generate("a", prompt, stream=False, sampling={"max_new_tokens": 5000})
    assert len(event.complete.output_ids) == 1024 - len(prompt)
    assert event.complete.finish_reason == "length"


def test_least_tokens_are_made_up(client: SchedulerClient) -> None:
    (event,) = client.generate("a", [101], stream=False, sampling={"min_new_tokens": 9})
    ids = list(event.complete.output_ids)
    assert ids[:3] == [7, 8, 9]
    assert len(ids) == 9


def test_scripted_ends_and_uses(client: SchedulerClient) -> None:
    first, second = (client.generate("a", [111])[-1].complete for _ in range(2))
    assert (list(first.output_ids), first.finish_reason) == ([1], "length")
    assert (list(second.output_ids), second.matched_stop_str, second.reasoning_tokens) == ([3], "x", 1)
    free = client.generate("a", [113], stream=False, sampling={"max_new_tokens": 1})[-1].complete
    assert (list(free.output_ids), free.finish_reason) == ([5, 2, 6], "stop")
    assert chunk_ids(client.generate("a", [110, 4, 5])) == [110, 4, 5]
    assert chunk_ids(client.generate("special-1", [1])) == [42]


def test_samples_have_indices_and_answers_of_their_own(client: SchedulerClient) -> None:
    for stream in (True, False):
        events = client.generate("a", [112], stream=stream, sampling={"n": 3})
        ends = completes(events)
        assert {index: list(end.output_ids)[-1] for index, end in ends.items()} == {0: 11, 1: 22, 2: 11}
        assert [end.completion_tokens for _, end in sorted(ends.items())] == [1, 2, 1]
    events = client.generate("a", [1], sampling={"n": 2, "max_new_tokens": 20})
    assert chunk_ids(events, 0) != chunk_ids(events, 1)


def test_stream_interval_sets_the_chunks(client: SchedulerClient) -> None:
    events = client.generate("a", [1], sampling={"max_new_tokens": 10, "stream_interval": 4})
    assert [len(e.chunk.token_ids) for e in events[:-1]] == [4, 4, 2]


def test_the_seed_decides_alone() -> None:
    def answer(*flags: str, request_id: str = "a") -> list[int]:
        with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
            return chunk_ids(client.generate(request_id, [1, 2], sampling={"max_new_tokens": 30}))

    assert answer("--seed", "5") == answer("--seed", "5", request_id="b")
    assert answer("--seed", "5") != answer("--seed", "6")


def test_a_clients_seed_changes_the_answer(client: SchedulerClient) -> None:
    def answer(seed: float) -> list[int]:
        request = generate_request("a", [1], sampling={"max_new_tokens": 20})
        request.sampling_params.custom_params.update({"seed": seed})
        return chunk_ids(list(client.Generate(request)))

    assert answer(1) == answer(1) != answer(2)


def test_logprobs_are_steady_and_make_a_distribution(client: SchedulerClient) -> None:
    def rows(request_id: str) -> pb.GenerateComplete:
        (event,) = client.generate(
            request_id,
            [9, 8, 7],
            stream=False,
            sampling={"max_new_tokens": 12},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=5,
        )
        return event.complete

    complete = rows("a")
    assert complete.output_logprobs == rows("b").output_logprobs
    assert list(complete.output_logprobs.token_ids) == list(complete.output_ids)
    for token, value, row in zip(
        complete.output_logprobs.token_ids,
        complete.output_logprobs.token_logprobs,
        complete.output_logprobs.top_logprobs,
        strict=True,
    ):
        values = list(row.values)
        assert len(values) == len(set(row.token_ids)) == 5
        assert token in row.token_ids
        assert value in values
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.0001
    given = [entry.HasField("value") for entry in complete.input_logprobs.token_logprobs]
    assert given == [False, True, True]
    assert list(complete.input_logprobs.token_ids) == [9, 8, 7]


@pytest.mark.parametrize(
    ("mode", "chunked", "completed"), [("repeat", 4, 1), ("only", 3, 1), ("all", 4, 4), ("none", 4, 0)]
)
def test_complete_ids(mode: str, chunked: int, completed: int) -> None:
    with Worker("--complete-ids", mode) as worker, SchedulerClient(worker.port) as client:
        events = client.generate("a", [1], sampling={"max_new_tokens": 4})
        assert len(chunk_ids(events)) == chunked
        assert len(events[-1].complete.output_ids) == completed
        assert events[-1].complete.completion_tokens == 4


# Text, adapters, vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of whole words; id 0 is unknown, id 1 ends an answer."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<unk>", "</s>", "hello", "world", "how", "are", "you", "?", "fine", "thanks"]
    model = tokenizers.models.WordLevel(
        {word: number for number, word in enumerate(words)}, unk_token="<unk>"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text("{}")
    return path


def test_scripted_text(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    rules = [
        {"match": {"text": "how are"}, "answer": {"text": "fine thanks ?"}},
        {"match": {"request": 3}, "answer": {"text": "thanks", "finish_reason": "length"}},
        {"match": {"any": True}, "answer": {"text": "hello </s> world"}},
    ]
    script.write_text(json.dumps({"rules": rules}))
    flags = ("--tokenizer", str(folder), "--script", str(script), "--eos", "1", "--accept-stop-strings")
    with Worker(*flags) as worker, SchedulerClient(worker.port) as client:
        complete = client.generate("a", [4, 5, 6], stream=False)[0].complete
        assert (list(complete.output_ids), complete.matched_token_id) == ([8, 9, 7, 1], 1)
        by_text = client.generate("b", [2], stream=False, text="how are things")[0].complete
        assert list(by_text.output_ids) == [8, 9, 7, 1]
        third = client.generate("c", [2], stream=False)[0].complete
        assert (list(third.output_ids), third.finish_reason) == ([9], "length")
        stopped = client.generate("d", [4, 5], stream=False, sampling={"stop": ["thanks"]})[0].complete
        assert (list(stopped.output_ids), stopped.matched_stop_str) == ([8, 9], "thanks")
        assert list(client.generate("e", [2], stream=False)[0].complete.output_ids) == [2, 1]
        assert client.GetModelInfo().vocab_size == 10
        data = b"".join(chunk.data for chunk in client.GetTokenizer())
        assert list(client.GetTokenizer())[-1].sha256 == hashlib.sha256(data).hexdigest()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.read("tokenizer.json") == (folder / "tokenizer.json").read_bytes()


def test_adapters() -> None:
    with Worker("--lora", "sql=/adapters/sql") as worker, SchedulerClient(worker.port) as client:
        request = pb.LoadLoRAAdapterRequest(
            lora_name="chat", lora_path="/adapters/chat", lora_id="id-2", pinned=True
        )
        assert list(client.LoadLoRAAdapter(request).loaded_lora_ids) == ["sql", "id-2"]
        again = client.LoadLoRAAdapter(request)
        assert (again.success, list(again.loaded_lora_ids)) == (False, ["sql", "id-2"])
        listed = client.ListLoadedLoRAAdapters().loaded_adapters
        assert [(a.lora_id, a.lora_name, a.lora_path, a.pinned) for a in listed] == [
            ("sql", "sql", "/adapters/sql", False),
            ("id-2", "chat", "/adapters/chat", True),
        ]
        assert completes(client.generate("a", [1], lora_id="id-2", sampling={"max_new_tokens": 1}))
        assert client.UnloadLoRAAdapter(pb.UnloadLoRAAdapterRequest(lora_name="chat", lora_id="id-2")).success
        assert refused(client.Generate(generate_request("a", [1], lora_id="id-2")))[0] == "INVALID_ARGUMENT"


def test_vectors() -> None:
    with Worker("--embedding-dim", "8") as worker, SchedulerClient(worker.port) as client:

        def embed(ids: list[int]) -> pb.EmbedResponse:
            request = pb.EmbedRequest(request_id="a", tokenized=pb.TokenizedInput(input_ids=ids))
            answer: pb.EmbedResponse = client.Embed(request)
            return answer

        first = embed([1, 2])
        assert (first.embedding_dim, len(first.embedding), first.prompt_tokens) == (8, 8, 2)
        assert sum(value * value for value in first.embedding) == pytest.approx(1, abs=1e-5)
        assert first.embedding == embed([1, 2]).embedding != embed([2, 1]).embedding
        assert not client.GetModelInfo().is_generation


# Faults


def test_a_scripted_status_comes_after_its_tokens(client: SchedulerClient) -> None:
    stream = client.Generate(generate_request("a", [102]))
    assert [list(next(stream).chunk.token_ids) for _ in range(2)] == [[5], [6]]
    assert refused(stream) == ("RESOURCE_EXHAUSTED", "no room")
    assert refused(client.Generate(generate_request("a", [103]))) == ("UNAVAILABLE", "gone")


def test_the_scheduler_may_give_up(client: SchedulerClient) -> None:
    events = client.generate("a", [104])
    assert chunk_ids(events) == [5]
    assert events[-1].complete.finish_reason == "abort"


def test_bytes_that_are_no_message(client: SchedulerClient) -> None:
    raw = client.channel.unary_stream(
        "/sglang.grpc.scheduler.SglangScheduler/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=None,
    )
    messages = list(raw(generate_request("a", [106]), timeout=10))
    assert messages[1] == b"\xff\x07"
    assert pb.GenerateResponse.FromString(messages[0]).chunk.token_ids == [5]
    assert pb.GenerateResponse.FromString(messages[-1]).complete.finish_reason == "stop"


def test_a_stream_without_its_complete(client: SchedulerClient) -> None:
    events = client.generate("a", [107])
    assert chunk_ids(events) == [5, 6]
    assert not completes(events)


def test_a_worker_that_dies() -> None:
    with Worker(*FLAGS) as worker, SchedulerClient(worker.port) as client:
        assert refused(client.Generate(generate_request("a", [108])))[0] == "UNAVAILABLE"
        wait_until(lambda: not worker.running(), 5, "exit")


@pytest.mark.parametrize(
    ("ids", "fields", "word"),
    [
        (list(range(1024)), {}, "1023"),
        ([1000], {}, "below 1000"),
        ([1], {"sampling": {"stop": ["x"]}}, "stop"),
        ([1], {"sampling": {"n": 0}}, "n must"),
        ([1], {"sampling": {"top_p": 0}}, "top_p"),
        ([1], {"sampling": {"json_schema": "{"}}, "json_schema"),
        ([1], {"lora_id": "none"}, "LoRA"),
        ([1], {"data_parallel_rank": 3}, "rank"),
        ([1], {"logprob_start_len": 2}, "logprob_start_len"),
        ([], {}, "input_ids"),
    ],
)
def test_bad_input_is_the_callers_fault(
    client: SchedulerClient, ids: list[int], fields: dict[str, Any], word: str
) -> None:
    code, message = refused(client.Generate(generate_request("a", ids, **fields)))
    assert code == "INVALID_ARGUMENT"
    assert word in message


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("{", "json"),
        ('[{"answer": {"texts": "x"}}]', "texts"),
        ('[{"answer": {"text": "x"}}]', "tokenizer"),
        ('[{"answer": {"echo": true, "random": 3}}]', "at most one"),
        ('[{"answer": {"error": {"status": "NOPE"}}}]', "NOPE"),
        ('[{"answer": {"finish_reason": "done"}}]', "done"),
        ('[{"match": {"prompt": "x"}, "answer": {}}]', "prompt"),
    ],
)
def test_a_wrong_script_is_one_clear_line(tmp_path: Path, script: str, word: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(script)
    command = [sys.executable, "-m", "wsgi_router.simulator", "--script", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1
    assert word in run.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tls-cert", "x.pem"), "belong together"),
        (("--tls-client-ca", "x.pem"), "belong together"),
        (("--tls-cert", "/no", "--tls-key", "/no"), "cannot read /no: No such file"),
    ],
)
def test_wrong_options_of_tls_are_one_clear_line(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulator.main(flags) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error
