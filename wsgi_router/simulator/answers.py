"""What a request is answered: the ids, cut by its limits and stop ids, and how they end. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from wsgi_router.simulator.config import SimulatorConfig
from wsgi_router.simulator.script import Answer
from wsgi_router.simulator.text import TextCodec
from wsgi_router.worker_api.engine import GenerationRequest, TokenLogprob

CHOSEN_LOGPROBS = tuple(math.log(p / 100) for p in range(40, 96))
RUNNER_UP = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will be sent: ids, then the finish."""

    token_ids: tuple[int, ...]
    finish_reason: str
    matched_token_id: int | None = None
    matched_stop: str | None = None


class Answerer:
    """Plans answers; the same request gets the same ids under the same seed, whatever its id."""

    def __init__(self, config: SimulatorConfig, text: TextCodec) -> None:
        self._config = config
        self._text = text
        self.vocab_size = text.vocab_size or config.vocab_size
        avoided = text.special_ids | set(config.eos)
        self._ordinary = [token for token in range(self.vocab_size) if token not in avoided]

    def plan(self, request: GenerationRequest, answer: Answer, room: int) -> Plan:
        """The answer to ``request`` in at most ``room`` tokens, as the script or the default says."""
        rng = self._rng(request)
        most = self._most(request, answer, room)
        ids = self._source(request, answer, rng, most)
        if answer.free:
            return self._end(ids, answer, "stop")
        return self._cut(request, answer, ids, rng, most)

    def _most(self, request: GenerationRequest, answer: Answer, room: int) -> int:
        asked = request.sampling.max_new_tokens
        return room if asked is None else min(asked, room)

    def _source(self, request: GenerationRequest, answer: Answer, rng: Random, most: int) -> list[int]:
        if answer.token_ids is not None:
            return list(answer.token_ids)
        if answer.random is not None:
            return rng.choices(self._ordinary, k=answer.random)
        if answer.echo or self._config.answer == "echo":
            return list(request.input_ids)
        # A limit is used up, as by a model that has much to say; without one the answer is short.
        if request.sampling.max_new_tokens is not None:
            return rng.choices(self._ordinary, k=most)
        return rng.choices(self._ordinary, k=self._config.answer_tokens) + list(self._config.eos[:1])

    def _cut(
        self, request: GenerationRequest, answer: Answer, ids: list[int], rng: Random, most: int
    ) -> Plan:
        """Apply stop ids and words, the least and the most tokens, in the order SGLang checks them."""
        sampling = request.sampling
        stops: set[int] = set()
        if not sampling.ignore_eos:
            stops = set(self._config.eos) | sampling.stop_token_ids
        ids = self._lengthened(ids, min(sampling.min_new_tokens, most), stops, rng)
        for size, token in enumerate(ids[:most], start=1):
            if size == most:
                # SGLang looks at the length first: a stop id in the last place changes nothing.
                break
            if token in stops and size > sampling.min_new_tokens:
                return Plan(tuple(ids[:size]), "stop", matched_token_id=token)
            if sampling.stop and (word := self._stop_word(ids[:size], sampling.stop)) is not None:
                return Plan(tuple(ids[:size]), "stop", matched_stop=word)
        return self._end(ids[:most], answer, "length" if len(ids) >= most else "stop")

    def _lengthened(self, ids: Sequence[int], least: int, stops: set[int], rng: Random) -> list[int]:
        """``ids`` without stop ids among the first ``least``, which are made up where they are missing."""
        out: list[int] = []
        for token in ids:
            if len(out) >= least or token not in stops:
                out.append(token)
        while len(out) < least:
            token = rng.choice(self._ordinary)
            if token not in stops:
                out.append(token)
        return out

    def _end(self, ids: Sequence[int], answer: Answer, finish: str) -> Plan:
        if finish == "length":
            return Plan(tuple(ids), finish)
        finish = answer.finish_reason or finish
        return Plan(tuple(ids), finish, answer.matched_token_id, answer.matched_stop)

    def _stop_word(self, ids: list[int], words: Sequence[str]) -> str | None:
        # A word is never longer in tokens than in bytes: the tail is enough.
        longest = max(len(word.encode()) for word in words)
        tail = self._text.decode(ids[-longest - 4 :])
        return next((word for word in words if word in tail), None)

    def _rng(self, request: GenerationRequest) -> Random:
        digest = blake2b(repr(request.input_ids).encode(), digest_size=8)
        own: Any = request.sampling.custom_params.get("seed", "")
        digest.update(f"{self._config.seed}/{request.index}/{own}".encode())
        return Random(digest.digest())

    def logprobs(self, request: GenerationRequest, ids: Sequence[int], start: int) -> list[TokenLogprob]:
        """Made-up but steady log probabilities of ``ids`` from position ``start`` on."""
        return [self._logprob(request, token, start + offset) for offset, token in enumerate(ids)]

    def input_logprobs(self, request: GenerationRequest) -> list[TokenLogprob] | None:
        """Those of the prompt from ``logprob_start_len`` on, where asked for; the first has none."""
        start = request.logprob_start_len
        if not request.return_logprob or start < 0:
            return None
        entries = self.logprobs(request, request.input_ids[start:], start)
        if entries:
            entries[0] = TokenLogprob(entries[0].token_id, None)
        return entries

    def _logprob(self, request: GenerationRequest, token: int, position: int) -> TokenLogprob:
        mixed = (token * 2654435761 + position * 40503 + self._config.seed) & 0xFFFFFFFF
        chosen = CHOSEN_LOGPROBS[mixed % len(CHOSEN_LOGPROBS)]
        rest = math.log1p(-math.exp(chosen))
        others = ((token + mixed + step) % self.vocab_size for step in range(1, request.top_logprobs_num + 1))
        distinct = [other for other in others if other != token]
        top = [(token, chosen)] if request.top_logprobs_num else []
        # Each runner-up takes half of what is left: always less than the one before it, and 1 in all.
        top += [(other, rest + (rank + 1) * math.log(RUNNER_UP)) for rank, other in enumerate(distinct)]
        wanted = [
            (other, chosen if other == token else rest - math.log(self.vocab_size))
            for other in request.token_ids_logprob
        ]
        return TokenLogprob(token, chosen, tuple(top[: request.top_logprobs_num]), tuple(wanted))
