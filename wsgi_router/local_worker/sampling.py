"""From a request's ``Sampling`` to a plan the slots can run; what cannot be done is refused by its field."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wsgi_router.local_worker.gbnf import parse_gbnf
from wsgi_router.local_worker.grammar import GrammarError, Ranges, Rules, compile_rules
from wsgi_router.local_worker.json_schema import schema_grammar
from wsgi_router.local_worker.llama import Llama
from wsgi_router.local_worker.matcher import Matcher
from wsgi_router.local_worker.regex import regex_rules
from wsgi_router.worker_api.engine import GenerationRequest, Sampling, invalid

# llama.cpp takes this one value as "choose for me".
_RANDOM_SEED = 2**32 - 1
_SAMPLE_STRIDE = 1_000_003
# Far beyond any logit, yet finite after division by the smallest temperature.
_MAX_BIAS = 1e6
_LONG_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar for the sampler, and its rules for a ``Matcher``; ``field`` is where it came from."""

    field: str
    text: str
    rules: Rules


@dataclass(frozen=True, slots=True)
class Plan:
    """How to sample one request: ``limit`` new tokens at most, ``stops`` end it, ``silent`` while too few.

    ``stops`` holds the client's ids and, unless ignored, the model's. ``minimum`` tokens come before any
    of ``stops`` or the model's ends may.
    """

    sampling: Sampling
    seed: int
    constraint: Constraint | None
    limit: int
    stops: frozenset[int]
    withheld: frozenset[int]
    minimum: int

    def sampler(self, llama: Llama, generated: list[int]) -> Any:
        """A sampler that stands after ``generated``: made anew when the minimum has been reached."""
        given = self.sampling
        bias = dict(given.logit_bias)
        if self.constraint is not None:
            # Their names would pass for text in the grammar; the ends are its own business.
            bias |= dict.fromkeys(set(llama.control_ids) - set(llama.eos_ids), -math.inf)
        if len(generated) < self.minimum:
            bias |= dict.fromkeys(self.withheld, -math.inf)
        made = llama.sampler(
            seed=(self.seed + len(generated)) % _RANDOM_SEED,
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            min_p=given.min_p,
            penalties=(given.repetition_penalty, given.frequency_penalty, given.presence_penalty),
            bias=bias,
            grammar=None if self.constraint is None else self.constraint.text,
        )
        for token in generated:
            made.accept(token)
        return made


def plan(request: GenerationRequest, llama: Llama) -> Plan:
    """Check a request and plan it. EngineError(INVALID_ARGUMENT) names the field that cannot be served."""
    _check_request(request, llama)
    sampling = request.sampling
    _check_sampling(sampling, llama.vocab_size)
    room = llama.context_length - len(request.input_ids)
    limit = room if sampling.max_new_tokens is None else sampling.max_new_tokens
    if limit > room:
        raise invalid(
            f"max_new_tokens: {len(request.input_ids)} prompt tokens and {limit} new ones exceed the context "
            f"of {llama.context_length}"
        )
    if sampling.min_new_tokens > limit:
        raise invalid(f"min_new_tokens: {sampling.min_new_tokens} is more than max_new_tokens {limit}")
    constraint = _constraint(sampling, llama.unspellable)
    if constraint is not None and (sampling.ignore_eos or sampling.min_new_tokens):
        field = "ignore_eos" if sampling.ignore_eos else "min_new_tokens"
        raise invalid(f"{field}: cannot be combined with a constraint, whose end is the answer's end")
    withheld = frozenset(llama.eos_ids) | {t for t in sampling.stop_token_ids if t < llama.vocab_size}
    if len(withheld) >= llama.vocab_size:
        raise invalid("stop_token_ids: no other token is left")
    ends = frozenset() if sampling.ignore_eos else frozenset(llama.eos_ids)
    return Plan(
        sampling=sampling,
        seed=_seed(sampling, request.index),
        constraint=constraint,
        limit=limit,
        stops=sampling.stop_token_ids | ends,
        withheld=withheld,
        minimum=sampling.min_new_tokens,
    )


def _check_request(request: GenerationRequest, llama: Llama) -> None:
    ids = request.input_ids
    if not ids:
        raise invalid("tokenized.input_ids: at least one token is needed")
    if any(not 0 <= token < llama.vocab_size for token in (*ids, *request.token_ids_logprob)):
        raise invalid(f"a token id is outside the vocabulary of {llama.vocab_size}")
    if len(ids) >= llama.context_length:
        raise invalid(
            f"tokenized.input_ids: {len(ids)} tokens leave no room in the context of {llama.context_length}"
        )
    if request.disaggregated is not None:
        raise invalid("disaggregated_params: this worker does prefill and decode itself")
    if request.lora_id:
        raise invalid("lora_id: this worker has no adapters")
    if request.data_parallel_rank:
        raise invalid("data_parallel_rank: this worker has rank 0 only")
    if request.top_logprobs_num < 0 or request.top_logprobs_num > llama.vocab_size:
        raise invalid("top_logprobs_num: out of range")
    if request.logprob_start_len < -1 or request.logprob_start_len > len(ids):
        raise invalid("logprob_start_len: has to be -1, or within the prompt")


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    # The servicer has checked the ranges that hold for every worker.
    if not math.isfinite(sampling.temperature):
        raise invalid("temperature: has to be finite")
    if sampling.stop:
        raise invalid("stop: this worker has no tokenizer to match stop strings with; send stop_token_ids")
    if sampling.structural_tag is not None:
        raise invalid("structural_tag: not supported by this worker")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size or not abs(bias) <= _MAX_BIAS:
            raise invalid(
                f"logit_bias: {token}: {bias}: a token of the vocabulary, at most {_MAX_BIAS} either way"
            )


def _seed(sampling: Sampling, index: int) -> int:
    for name in sampling.custom_params:
        if name != "seed":
            raise invalid(f"custom_params.{name}: not known to this worker")
    seed = sampling.custom_params.get("seed")
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    if isinstance(seed, bool) or not isinstance(seed, int | float) or seed != int(seed):
        raise invalid("custom_params.seed: has to be a whole number")
    # The samples of one request differ, and differ the same way each time.
    return (int(seed) + index * _SAMPLE_STRIDE) % _RANDOM_SEED


def _constraint(sampling: Sampling, holes: Ranges) -> Constraint | None:
    for field in ("regex", "json_schema", "ebnf_grammar"):
        text = getattr(sampling, field)
        if text is not None:
            try:
                return _compiled(field, text, holes)
            except GrammarError as error:
                raise invalid(f"{field}: {error}") from error
    return None


@lru_cache(maxsize=64)
def _compiled(field: str, text: str, holes: Ranges) -> Constraint:
    if field == "regex":
        rules = regex_rules(text)
    else:
        rules = parse_gbnf(schema_grammar(text) if field == "json_schema" else text)
    made = Constraint(field, compile_rules(rules, holes), rules)
    Matcher(rules).probe(_LONG_TOKEN)
    return made
