"""What workers serve: one card for each name, and how a card comes from the process that asks to the others.

The process that probes writes a worker's answer into a file of the board's folder, replaced as a whole, and
raises the number in the worker's record; each other process reads the file when it sees another number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from wsgi_router.pb import sglang_scheduler_pb2 as pb
from wsgi_router.sharing import replace_file
from wsgi_router.workers.worker import ModelCard, Worker


def card_of(answer: bytes) -> ModelCard:
    """The card in a GetModelInfoResponse. Raises DecodeError."""
    info = pb.GetModelInfoResponse.FromString(answer)
    return ModelCard(
        name=info.served_model_name or info.model_path,
        context_length=max(info.max_context_length, 0),
        weight_version=info.weight_version,
        eos_token_ids=tuple(info.eos_token_ids),
        default_sampling_params=info.default_sampling_params_json,
        preferred_sampling_params=info.preferred_sampling_params,
        model_path=info.model_path,
        tokenizer_path=info.tokenizer_path,
        vocab_size=info.vocab_size,
        model_type=info.model_type,
        is_generation=info.is_generation,
        supports_vision=info.supports_vision,
        architectures=tuple(info.architectures),
    )


def by_name(workers: Iterable[Worker], served: str) -> dict[str, ModelCard]:
    """One card a served name, sorted by name; `served` is the name of all, if it is not empty."""
    cards: dict[str, ModelCard] = {}
    for worker in workers:
        if worker.card is not None:
            name = served or worker.card.name
            cards[name] = _narrower(cards.get(name), worker.card, name)
    return dict(sorted(cards.items()))


def _narrower(known: ModelCard | None, card: ModelCard, name: str) -> ModelCard:
    """One card for several workers of a name: the shortest known context, as any of them may be chosen."""
    lengths = [one.context_length for one in (known, card) if one is not None and one.context_length]
    return dataclasses.replace(known or card, name=name, context_length=min(lengths, default=0))


class Cards:
    """Workers' answers to GetModelInfo in `folder`; without one there are no other processes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def take(self, worker: Worker) -> bool:
        """Takes in a card that another process has got, if there is one. Raises OSError, DecodeError."""
        number = worker.record.card
        if number == worker.card_number or self._folder is None:
            return False
        worker.card = card_of(self._path(self._folder, worker).read_bytes())
        worker.card_number = number
        return True

    def give(self, worker: Worker, answer: bytes) -> bool:
        """Takes in a worker's answer, for all processes; whether it is news. Raises OSError, DecodeError."""
        news = self.take(worker)
        card = card_of(answer)
        if card == worker.card:
            return news
        if self._folder is not None:
            replace_file(self._path(self._folder, worker), answer)
        worker.card = card
        worker.card_number = worker.record.change_card()
        return True

    @staticmethod
    def _path(folder: Path, worker: Worker) -> Path:
        return folder / f"card-{worker.id}"

    def __repr__(self) -> str:
        return f"<Cards in {self._folder}>"
