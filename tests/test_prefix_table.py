"""The table of prefixes beside an oracle in plain Python, from one process and from several at once."""

from __future__ import annotations

import dataclasses
import errno
import json
import mmap
import multiprocessing
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tiny
from wsgi_router import native
from wsgi_router._core import PREFIX_BLOCK, PrefixTable, Prompt
from wsgi_router.pb import common_pb2 as pb
from wsgi_router.settings import Settings, SettingsError

COLUMNS = (0, 3, 511)
BLOCK = PREFIX_BLOCK


def shared_memory(size: int = 1 << 20) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    memory[:8] = b"the seed"
    return memory


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> native.Tokenizer:
    return native.Tokenizer(str(tiny.write(tmp_path_factory.mktemp("tiny"))))


def prompt_of(tokenizer: native.Tokenizer, table: PrefixTable, ids: list[int], adapter: str = "") -> Prompt:
    prepared = tokenizer.prepare(json.dumps({"input_ids": ids}).encode())
    return table.prompt(prepared, adapter)


class Oracle:
    """Every block of every prompt that a worker was sent, as the tuple of all ids up to its end."""

    def __init__(self) -> None:
        self.blocks: dict[int, set[tuple[int, ...]]] = {column: set() for column in COLUMNS}

    @staticmethod
    def cut(ids: list[int]) -> list[tuple[int, ...]]:
        return [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]

    def note(self, column: int, ids: list[int]) -> None:
        self.blocks[column].update(self.cut(ids))

    def known(self, column: int, ids: list[int]) -> tuple[int, int]:
        there = [block in self.blocks[column] for block in self.cut(ids)]
        return [*there, False].index(False), len(self.blocks[column])


def prompts() -> st.SearchStrategy[list[int]]:
    """Of a few long pieces, so that many begin alike and part within a block or between two."""
    piece = st.builds(
        lambda token, count: [token] * count, st.integers(1, 3), st.sampled_from([5, 16, 37, 64])
    )
    return st.lists(piece, min_size=1, max_size=6).map(lambda pieces: [*chain(*pieces)])


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["note", "clear"] + ["note"] * 6), st.sampled_from(COLUMNS), prompts())
    )
)
def test_it_says_what_the_oracle_says(
    tokenizer: native.Tokenizer, steps: list[tuple[str, int, list[int]]]
) -> None:
    table, oracle = PrefixTable(shared_memory()), Oracle()
    for action, column, ids in steps:
        prompt = prompt_of(tokenizer, table, ids)
        assert prompt.blocks == len(ids) // BLOCK
        assert prompt.known(COLUMNS) == [oracle.known(one, ids) for one in COLUMNS]
        if action == "note":
            prompt.note(column)
            oracle.note(column, ids)
        else:
            table.clear(column)
            oracle.blocks[column].clear()


class Engine:
    """A worker's cache in blocks of `size`: tells what it stores and drops, a leaf at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: dict[tuple[int, ...], int] = {}
        self.number = 0

    def batch(self, *events: pb.KvCacheEvent) -> bytes:
        self.number += 1
        return pb.KvEventBatch(sequence_number=self.number, events=events).SerializeToString()

    def store(self, ids: list[int]) -> bytes:
        event = pb.KvCacheEvent()
        event.stored.SetInParent()
        parent: int | None = None
        for end in range(self.size, len(ids) + 1, self.size):
            key = tuple(ids[:end])
            if key not in self.blocks:
                self.blocks[key] = hash(key)
                if not event.stored.blocks and parent is not None:
                    event.stored.parent_block_hash = parent
                event.stored.blocks.add(block_hash=hash(key), token_ids=key[-self.size :])
            parent = self.blocks[key]
        return self.batch(event)

    def drop_longest(self) -> bytes:
        event = pb.KvCacheEvent()
        event.removed.SetInParent()
        if self.blocks:
            event.removed.block_hashes.append(self.blocks.pop(max(self.blocks, key=len)))
        return self.batch(event)

    def tokens(self, ids: list[int]) -> int:
        ends = range(self.size, len(ids) + 1, self.size)
        return max((end for end in ends if tuple(ids[:end]) in self.blocks), default=0)


@settings(max_examples=50, deadline=None)
@given(
    size=st.sampled_from([1, 4, 16, 24, 64]), steps=st.lists(st.tuples(st.booleans(), prompts()), max_size=12)
)
def test_a_followed_worker_is_known_as_it_is(
    tokenizer: native.Tokenizer, size: int, steps: list[tuple[bool, list[int]]]
) -> None:
    table, engine = PrefixTable(shared_memory()), Engine(size)
    follower = table.follow(3)
    for drop, ids in steps:
        message = engine.drop_longest() if drop else engine.store(ids)
        assert follower.apply(message) == (engine.number, True, False)
        for _, asked in steps:
            ((matched, _),) = prompt_of(tokenizer, table, asked).known([3])
            # Of a page that is larger than a block, a part may be taken for the whole.
            more = matched - engine.tokens(asked) // BLOCK
            assert 0 <= more <= (size - 1) // BLOCK
    assert table.is_fed(3) == bool(steps)
    follower.close()
    follower.close()
    assert not table.is_fed(3)


def test_an_adapter_has_a_cache_of_its_own(tokenizer: native.Tokenizer) -> None:
    table, ids = PrefixTable(shared_memory()), list(range(64))
    prompt_of(tokenizer, table, ids, "one").note(0)
    seen = [prompt_of(tokenizer, table, ids, name).known([0])[0][0] for name in ("", "one", "two")]
    assert seen == [0, 4, 0]


def test_a_table_that_is_full_goes_on(tokenizer: native.Tokenizer) -> None:
    table = PrefixTable(shared_memory(64 * 1024))  # 6,144 blocks
    found = 0
    for number in range(200):
        ids = [number % 250, number // 250] * 400
        prompt = prompt_of(tokenizer, table, ids)
        prompt.note(0)
        found += prompt.known([0])[0][0]
    assert found > 0.8 * 200 * prompt.blocks  # all of them came in one second
    ((_, held),) = prompt.known([0])
    assert 3000 < held <= 6144


def _write(memory: mmap.mmap, folder: str, process: int, rounds: int) -> None:
    tokenizer, table = native.Tokenizer(folder), PrefixTable(memory)
    shared = [[number % 256, 7] * 80 for number in range(20)]
    for _ in range(rounds):
        for number, ids in enumerate(shared):
            prompt_of(tokenizer, table, ids).note(number % 4)
        prompt_of(tokenizer, table, [100 + process, 1] * 200).note(4 + process)


def test_processes_that_write_at_once_lose_nothing_that_fits(tmp_path: Path) -> None:
    folder, memory = str(tiny.write(tmp_path)), shared_memory()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(memory, folder, number, 20)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    tokenizer, table = native.Tokenizer(folder), PrefixTable(memory)
    for number in range(20):
        known = prompt_of(tokenizer, table, [number % 256, 7] * 80).known(range(4))
        assert [matched for matched, _ in known] == [10 * (column == number % 4) for column in range(4)]
    for process in range(4):
        assert prompt_of(tokenizer, table, [100 + process, 1] * 200).known([4 + process])[0][0] == 25


def test_memory_without_room_is_refused(tokenizer: native.Tokenizer) -> None:
    table = PrefixTable(bytearray(1024))
    with pytest.raises(native.NativeError):
        prompt_of(tokenizer, table, [1] * 64)
    with pytest.raises(native.NativeError):
        PrefixTable(shared_memory()).clear(512)
    with pytest.raises(native.NativeError):
        PrefixTable(shared_memory()).follow(0).apply(b"\xff")


def test_a_table_that_cannot_be_had_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Settings(policy="cache_aware", cache_index_mib=1)
    table = native.prefix_table(wanted)

    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(SettingsError, match="CACHE_INDEX_MIB: 2 MiB cannot be had"):
        native.prefix_table(dataclasses.replace(wanted, cache_index_mib=2))
    assert native.prefix_table(wanted) is table
