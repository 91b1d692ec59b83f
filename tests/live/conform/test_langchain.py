"""The same answers through langchain-openai."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any, cast

import openai
import pydantic
import pytest
import tiktoken
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from tests.live.conform.kinds import ARGUMENTS, DIMENSIONS, EMBEDDER, KEY, MODEL, NO_THINKING, SAID, TOOLS
from tests.support.processes import QWEN3, Router


class Place(pydantic.BaseModel):
    """A place and a time."""

    city: str
    days: int


ZURICH = Place(city="Zürich 🏔", days=2)
WEATHER = ("get_weather", ARGUMENTS)


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is traced, and tiktoken finds its encoding without fetching it: each byte is a token."""
    for name in [name for name in os.environ if name.startswith(("LANGSMITH_", "LANGCHAIN_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("cl100k_base", pat_str=r".+|\n+", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "cl100k_base", encoding)


def model(router: Router, **fields: Any) -> ChatOpenAI:
    given: dict[str, Any] = {
        "model": MODEL,
        "base_url": f"{router.url}/v1",
        "api_key": KEY,
        "max_retries": 0,
        "use_responses_api": False,
        **fields,
    }
    return ChatOpenAI(**given)


@pytest.fixture
def chat(router: Router) -> ChatOpenAI:
    return model(router)


def calls(message: Any) -> list[tuple[str, Any]]:
    assert message.invalid_tool_calls == []
    assert all(call["id"].startswith("call_") for call in message.tool_calls)
    return [(call["name"], call["args"]) for call in message.tool_calls]


def added_up(chunks: Iterator[Any]) -> AIMessageChunk:
    first, *others = chunks
    whole: Any = first
    for chunk in others:
        whole = whole + chunk
    return cast(AIMessageChunk, whole)


def test_invoke(chat: ChatOpenAI) -> None:
    answer = chat.invoke([SystemMessage("Be brief."), HumanMessage("just-say")])
    assert answer.content == SAID
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == MODEL
    usage = answer.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert "reasoning" in usage["output_token_details"]
    assert answer.response_metadata["system_fingerprint"] == "v7"


def test_stream_with_usage(router: Router) -> None:
    chat = model(router, stream_usage=True)
    whole = chat.invoke("just-say").usage_metadata
    answer = added_up(iter(list(chat.stream("just-say"))))
    assert answer.content == SAID
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert whole is not None
    assert answer.usage_metadata["output_tokens"] == whole["output_tokens"]
    assert answer.usage_metadata["input_tokens"] == whole["input_tokens"]


def test_async(chat: ChatOpenAI) -> None:
    async def use() -> None:
        answers = await asyncio.gather(chat.ainvoke("just-say"), chat.ainvoke("stop-here", stop=[" STOP"]))
        assert [answer.content for answer in answers] == [SAID, "one two"]
        parts = [chunk async for chunk in chat.astream("just-say")]
        assert len(parts) > 5
        assert "".join(cast(str, part.content) for part in parts) == SAID

    asyncio.run(use())


@pytest.mark.parametrize("streaming", [False, True])
def test_tools(chat: ChatOpenAI, streaming: bool) -> None:
    bound = chat.bind_tools(TOOLS)
    answer: Any = added_up(iter(list(bound.stream("call-two")))) if streaming else bound.invoke("call-two")
    assert calls(answer) == [WEATHER, ("add", {"a": 1, "b": -2.5})]
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert calls(bound.invoke("just-say")) == []


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("word", "choice"), [("force-one", "any"), ("force-one", "required"), ("force-named", "get_weather")]
)
def test_forced_tools(router: Router, word: str, choice: str, streaming: bool) -> None:
    chat = model(router, extra_body=NO_THINKING)
    bound = chat.bind_tools(TOOLS, tool_choice=choice, strict=True, parallel_tool_calls=False)
    answer = added_up(iter(list(bound.stream(word)))) if streaming else bound.invoke(word)
    assert calls(answer) == [WEATHER]


def test_the_history_of_a_tool_goes_back(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools(TOOLS)
    asked = HumanMessage("think-call")
    answer = bound.invoke([asked])
    assert isinstance(answer, AIMessage)
    results = [ToolMessage("42", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert bound.invoke([asked, answer, *results, HumanMessage("just-say")]).content == SAID


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain dumps the SDK's models
@pytest.mark.parametrize(
    ("method", "word"),
    [("json_schema", "as-json"), ("json_mode", "as-json"), ("function_calling", "force-named")],
)
def test_structured_output(router: Router, method: Any, word: str) -> None:
    chat = model(router, extra_body=NO_THINKING)
    raw: Any = chat.with_structured_output(Place, method=method, include_raw=True).invoke(word)
    assert raw["parsing_error"] is None
    assert raw["parsed"] == ZURICH
    if method == "json_schema":
        strict = chat.with_structured_output(Place, method=method, strict=True)
        assert strict.invoke(word) == ZURICH
        assert list(strict.stream(word))[-1] == ZURICH


def test_logprobs(router: Router) -> None:
    chat = model(router, logprobs=True, top_logprobs=2)
    entries = chat.invoke("just-say").response_metadata["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode().startswith(SAID)
    streamed = added_up(iter(list(chat.stream("just-say")))).response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_settings_of_a_chat_model(router: Router) -> None:
    chat = model(
        router,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        n=2,
        max_tokens=3,
        presence_penalty=0.1,
        reasoning_effort="low",
    )
    result = chat.generate([[HumanMessage("just-say")]])
    assert len(result.generations[0]) == 2
    for generation in result.generations[0]:
        assert generation.generation_info is not None
        assert generation.generation_info["finish_reason"] == "length"


def test_errors(chat: ChatOpenAI) -> None:
    with pytest.raises(openai.RateLimitError):
        chat.invoke("too-busy")
    with pytest.raises(openai.BadRequestError):
        list(chat.stream("word " * 5000))
    with pytest.raises(openai.APIError):
        list(chat.stream("break-midway"))


def test_completions(router: Router) -> None:
    given: dict[str, Any] = {
        "model": MODEL,
        "base_url": f"{router.url}/v1",
        "api_key": KEY,
        "max_retries": 0,
        "max_tokens": 99,
    }
    text = OpenAI(**given)
    assert text.invoke("just-say") == SAID
    assert "".join(text.stream("just-say")) == SAID
    result = text.generate(["just-say", "stop-here"], stop=[" STOP"])
    assert [one[0].text for one in result.generations] == [SAID, "one two"]
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["total_tokens"] > 0
    assert len(OpenAI(**given, n=2, best_of=2).generate(["just-say"]).generations[0]) == 2
    assert asyncio.run(text.ainvoke("just-say")) == SAID


def embedder(router: Router, **fields: Any) -> OpenAIEmbeddings:
    given: dict[str, Any] = {
        "model": EMBEDDER,
        "base_url": f"{router.url}/v1",
        "api_key": KEY,
        "max_retries": 0,
        **fields,
    }
    return OpenAIEmbeddings(**given)


TEXTS = ["one", "two words", "x" * 100]


def test_embeddings_of_texts(embedding_router: Router) -> None:
    plain = embedder(embedding_router, check_embedding_ctx_length=False)
    vectors = plain.embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [DIMENSIONS] * 3
    assert plain.embed_query("one") == vectors[0]
    assert asyncio.run(plain.aembed_documents(TEXTS)) == vectors
    sized = embedder(embedding_router, check_embedding_ctx_length=False, dimensions=DIMENSIONS)
    assert sized.embed_query("one") == vectors[0]


def test_embeddings_of_token_ids(embedding_router: Router) -> None:
    """As langchain does it unless it is told not to: it tokenizes, cuts what is long, and sends ids."""
    ids = embedder(embedding_router, embedding_ctx_length=64)
    vectors = ids.embed_documents(TEXTS)
    with openai.OpenAI(base_url=f"{embedding_router.url}/v1", api_key=KEY, max_retries=0) as client:
        same = client.embeddings.create(model=EMBEDDER, input=[list(text.encode()) for text in TEXTS[:2]])
    assert vectors[:2] == [row.embedding for row in same.data]
    assert len(vectors[2]) == DIMENSIONS


def test_embeddings_cut_by_the_models_own_tokenizer(embedding_router: Router) -> None:
    fields: dict[str, Any] = {"tiktoken_enabled": False, "tiktoken_model_name": str(QWEN3)}
    vectors = embedder(embedding_router, embedding_ctx_length=500, **fields).embed_documents(TEXTS)
    assert vectors == embedder(embedding_router, check_embedding_ctx_length=False).embed_documents(TEXTS)
