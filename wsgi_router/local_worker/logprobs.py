"""Log probabilities from a row of logits: the model's own, before temperature, penalties and constraints."""

from __future__ import annotations

import heapq
import math

from wsgi_router.worker_api.engine import GenerationRequest, TokenLogprob


def token_logprob(logits: list[float], token: int, request: GenerationRequest) -> TokenLogprob:
    """The entry of ``token``, with the request's ``top_logprobs_num`` and ``token_ids_logprob`` beside it."""
    highest = max(logits)
    total = highest + math.log(sum(math.exp(value - highest) for value in logits))
    count = request.top_logprobs_num
    best = heapq.nlargest(count, range(len(logits)), key=logits.__getitem__) if count else []
    return TokenLogprob(
        token_id=token,
        logprob=logits[token] - total,
        top=tuple((other, logits[other] - total) for other in best),
        wanted=tuple((other, logits[other] - total) for other in request.token_ids_logprob),
    )
