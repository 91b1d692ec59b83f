"""The one place that touches cyllama, the llama.cpp binding.

A loaded model, one context with ``slots`` sequences of ``context_length`` positions each, and one batch.
Nothing here is safe for use by two threads at a time.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from wsgi_router.local_worker.gguf_tokenizer import byte_alphabet
from wsgi_router.local_worker.grammar import Ranges

BATCH = 64
_GREEDY_BELOW = 1e-6


class ModelError(RuntimeError):
    """The engine or the model file cannot be used; the message is one line for the user."""


def cyllama() -> Any:
    """The binding's low-level module, its log switched off."""
    try:
        binding = import_module("cyllama.llama.llama_cpp")
    except ImportError as error:
        raise ModelError(
            f"the engine cyllama is missing (pip install 'wsgi-router[local]'): {error}"
        ) from error
    binding.disable_logging()
    return binding


def load_model(gguf: Path) -> Any:
    """The model in ``gguf``, its weights mapped."""
    binding = cyllama()
    binding.ggml_backend_load_all()

    base: Any = binding.LlamaModel

    class Model(base):  # type: ignore[misc]
        # The binding's get_logits_ith reads this name, which its own class lacks.
        @property
        def n_vocab(self) -> int:
            return int(self.get_vocab().n_vocab)

    try:
        return Model(str(gguf), binding.LlamaModelParams())
    except Exception as error:
        raise ModelError(f"{gguf} cannot be loaded: {error}") from error


def end_ids(vocab: Any) -> tuple[int, ...]:
    """All ids that end a generation, the vocabulary's own EOS first."""
    ends = [token for token in range(vocab.n_vocab) if vocab.is_eog(token)]
    return tuple(sorted(ends, key=lambda token: (token != vocab.token_eos(), token)))


class Llama:
    """A model ready to decode. ``eos_ids`` end a generation; ``control_ids`` are never plain text."""

    def __init__(self, gguf: Path, context_length: int, slots: int, threads: int) -> None:
        self._binding = cyllama()
        self.model = load_model(gguf)
        self.vocab = self.model.get_vocab()
        self.vocab_size: int = self.vocab.n_vocab
        self.context_length = min(context_length, int(self.model.n_ctx_train))
        self.slots = slots
        self._context = self._make_context(threads)
        self._batch = self._binding.LlamaBatch(n_tokens=BATCH, embd=0, n_seq_max=1)
        self.eos_ids = end_ids(self.vocab)
        self._bytes = {char: byte for byte, char in byte_alphabet().items()}
        self.control_ids = tuple(token for token in range(self.vocab_size) if self.vocab.is_control(token))
        self.unspellable = unspellable({self.vocab.get_text(token) for token in range(self.vocab_size)})

    @property
    def weight_bytes(self) -> int:
        """Size of all tensors."""
        return int(self.model.size)

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache: half-precision keys and values of every layer and position."""
        width = self.model.n_embd // self.model.n_head * self.model.n_head_kv
        return int(4 * width * self.model.n_layer * self.context_length * self.slots)

    def token_bytes(self, token: int) -> bytes:
        """What a token that is plain text adds to the output; nothing for the others."""
        return bytes(self._bytes[char] for char in self.vocab.get_text(token) if char in self._bytes)

    def meta(self, key: str) -> str:
        """A value of the model file's header, as text; empty if it is not there."""
        return str(self.model.metadata().get(key, ""))

    def _make_context(self, threads: int) -> Any:
        params = self._binding.LlamaContextParams()
        params.n_ctx = self.context_length * self.slots
        params.n_seq_max = self.slots
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        return self._binding.LlamaContext(self.model, params)

    def decode(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Run at most BATCH entries: token, position, sequence, logits wanted? ValueError, RuntimeError."""
        self._batch.clear()
        for token, position, sequence, wanted in entries:
            self._batch.add(token, position, [sequence], wanted)
        self._context.decode(self._batch)

    def logits(self, index: int) -> list[float]:
        """One float for each id of the vocabulary: what entry ``index`` of the last decode predicts."""
        values: list[float] = self._context.get_logits_ith(index)
        return values

    def sample(self, sampler: Any, index: int) -> int:
        """The next id after entry ``index`` of the last decode; the sampler takes note of it."""
        return int(sampler.sample(self._context, index))

    def keep(self, sequence: int, length: int) -> bool:
        """Forget all but the first ``length`` positions of a sequence."""
        return bool(self._context.memory_seq_rm(sequence, length, -1))

    def clear(self) -> None:
        """Forget all sequences."""
        self._context.kv_cache_clear()

    def sampler(
        self,
        *,
        seed: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        penalties: tuple[float, float, float],
        bias: dict[int, float],
        grammar: str | None,
    ) -> Any:
        """A sampler chain; ``penalties`` are repetition, frequency, presence over what it has sampled.

        The order is SGLang's: bias and penalties on the logits, the constraint, temperature, then the cuts.
        ``grammar`` must come from ``grammar.compile_rules``.
        """
        chain = self._binding.LlamaSampler(self._binding.LlamaSamplerChainParams())
        if bias:
            chain.add_logit_bias(self.vocab_size, list(bias.items()))
        if penalties != (1.0, 0.0, 0.0):
            chain.add_penalties(self.context_length, *penalties)
        if grammar is not None:
            chain.add_grammar(self.vocab, grammar, "root")
        if temperature < _GREEDY_BELOW:
            chain.add_greedy()
            return chain
        chain.add_temp(temperature)
        chain.add_top_k(top_k)
        chain.add_top_p(top_p, 1)
        chain.add_min_p(min_p, 1)
        chain.add_dist(seed)
        return chain

    def close(self) -> None:
        """Free the context and the model."""
        self._batch.close()
        self._context.close()
        self.model.close()


def unspellable(texts: set[str]) -> Ranges:
    """Code points that a byte-level vocabulary of the tokens ``texts`` cannot write, and surrogates."""
    missing = {byte for byte, char in byte_alphabet().items() if char not in texts}
    if any(0x80 <= byte <= 0xBF for byte in missing):
        missing |= set(range(0xC0, 0x100))
    found = [(0xD800, 0xDFFF)]
    for byte in missing:
        if byte < 0x80:
            found.append((byte, byte))
        elif 0xC2 <= byte <= 0xDF:
            found.append(((byte & 0x1F) << 6, ((byte & 0x1F) << 6) + 0x3F))
        elif 0xE0 <= byte <= 0xEF:
            found.append((max(0x800, (byte & 0x0F) << 12), ((byte & 0x0F) << 12) + 0xFFF))
        elif 0xF0 <= byte <= 0xF4:
            found.append((max(0x10000, (byte & 7) << 18), min(0x10FFFF, ((byte & 7) << 18) + 0x3FFFF)))
    return tuple(sorted(found))
