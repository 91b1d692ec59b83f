"""The list of workers: that of the settings, what was changed of it while running, and what was discovered.

All processes of a server serve the same list. The changes stand in a file of the server's own, replaced as a
whole; the board's generation says that there are new ones. WORKERS_FILE is where they come from at the start
and on a reload, and where each one is kept as well; what becomes of it in between does no harm.

What is discovered stands in a second file of the server's, by its source. A discovered worker that was
removed, or drains, stays so until its source has it no more: if it is found again then, it is a new one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from wsgi_router import setting_sources
from wsgi_router.errors import InternalError, InvalidRequestError, RouterError
from wsgi_router.setting_casts import MOST_WORKERS, worker_url
from wsgi_router.settings import Settings, SettingsError
from wsgi_router.sharing import replace_file
from wsgi_router.workers.board import Board
from wsgi_router.workers.roles import BOOTSTRAP_PORT, REGULAR, Part, Role, split_port

_LOG = logging.getLogger(__name__)
_FILE: Final = "workers.json"
_FOUND: Final = "discovered.json"

Found = dict[str, dict[str, Part]]
"""Workers and their parts, by the source that has discovered them."""
NO_PARTS: Final[Mapping[str, Part]] = {}


class Member(NamedTuple):
    """What the list says of a worker."""

    part: Part = REGULAR
    draining: bool = False


class Half(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part as the file has it."""

    role: Role
    bootstrap_port: int = BOOTSTRAP_PORT


class Changes(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Workers by their URLs."""

    added: list[str] = msgspec.field(default_factory=list)
    halves: dict[str, Half] = msgspec.field(default_factory=dict)
    """What is another part than the settings or a source say; for one unknown to them, than a regular one."""
    removed: list[str] = msgspec.field(default_factory=list)
    draining: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        """URLs as the settings have them: a kept file may be edited by hand. ValueError."""
        for urls in (self.added, self.removed, self.draining):
            urls[:] = map(worker_url, urls)
        self.halves = {worker_url(url): half for url, half in self.halves.items()}


class WorkerExistsError(RouterError):
    status = 409
    code = "worker_exists"

    def __init__(self) -> None:
        super().__init__("There is such a worker already.", param="url")


def parts(settings: Settings) -> dict[str, Part]:
    """The settings' workers by URL, in order."""
    found = dict.fromkeys(settings.workers, REGULAR)
    for url, port in map(split_port, settings.prefill_workers):
        found[url] = Part(Role.PREFILL, port)
    return found | dict.fromkeys(settings.decode_workers, Part(Role.DECODE))


def read(settings: Settings) -> Changes | None:
    """What WORKERS_FILE holds; None if there is no such setting.

    Raises SettingsError, also where it cannot be kept.
    """
    if not settings.workers_file:
        return None
    if settings.admin_key:  # else nobody can change it, and it may well be read-only
        with setting_sources.writing("WORKERS_FILE", Path(settings.workers_file).parent):
            pass
    return _usable(Path(settings.workers_file), tuple(parts(settings))) or Changes()


def share(board: Board, changes: Changes | None) -> None:
    """The processes of the server whose board this is take `changes` in, if there are any. In the master.

    Raises SettingsError.
    """
    if changes is not None and board.folder is not None:
        with board.locked():
            try:
                _replace(board.folder / _FILE, changes)
            except OSError as error:
                raise SettingsError(f"{board.folder} cannot be written: {error.strerror}") from None
            board.advance()


class Membership:
    """`urls`: the settings' workers. `path`: the file for the changes, if they are to outlive the server.

    `parts`: of those in `urls` that are not regular workers. `sources`: names of those that discover workers;
    of one that several have, the first tells the part.
    Raises SettingsError for a file that cannot be used, if no board is shared; else see `read`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        board: Board,
        path: str = "",
        parts: Mapping[str, Part] = NO_PARTS,
        sources: Sequence[str] = (),
    ) -> None:
        self._urls = urls
        self._parts = parts
        self._sources = sources
        self._board = board
        self._lasting = Path(path) if path else None
        self._shared = board.folder / _FILE if board.folder else None
        self._found_at = board.folder / _FOUND if board.folder else None
        kept = None if self._lasting is None or self._shared else _usable(self._lasting, urls)
        self._kept = kept or Changes()  # where nothing is shared
        self._found: Found = {}  # likewise

    @property
    def generation(self) -> int:
        """Another one means that `entries` may have changed."""
        return self._board.generation

    def entries(self) -> Mapping[str, bool]:
        """The workers' URLs in order, and whether each takes no new requests. Raises SettingsError."""
        return _entries(self._urls, self._read(), self._of_sources(self._read_found()))

    def is_complete(self) -> bool:
        """Whether each source has told what it has discovered. Raises SettingsError."""
        return self._read_found().keys() >= set(self._sources)

    def discover(self, source: str, workers: Mapping[str, Part]) -> bool:
        """`source` has these workers now; whether that changes anything. Raises InternalError."""
        with self._board.locked():
            found = self._latest_found()
            before = found.get(source)
            found[source] = dict(workers)
            if found[source] == before:
                return False
            changes = self._latest()
            self._write_found(found)
            discovered = self._of_sources(found)
            if self._forget(changes, {*(before or ())} - {*discovered}):
                self._write(changes)
            self._board.advance()
        wanted = len({*self._urls, *changes.added, *discovered} - {*changes.removed})
        if wanted > MOST_WORKERS:
            _LOG.error("%d workers were discovered or named; %d of them are served", wanted, MOST_WORKERS)
        return True

    def _forget(self, changes: Changes, gone: Collection[str]) -> bool:
        """Forgets what was changed of workers that were discovered, and are no more."""
        gone = {url for url in gone if url not in self._urls and url not in changes.added}
        forgotten = False
        for urls in (changes.removed, changes.draining):
            kept = [url for url in urls if url not in gone]
            forgotten = forgotten or kept != urls
            urls[:] = kept
        for url in gone & changes.halves.keys():
            del changes.halves[url]
            forgotten = True
        return forgotten

    def _read_found(self) -> Found:
        if self._found_at is None:
            return dict(self._found)
        return _load_found(self._found_at)

    def _latest_found(self) -> Found:
        try:
            return self._read_found()
        except SettingsError as error:
            raise InternalError(f"What is discovered cannot be kept: {error}.") from None

    def _write_found(self, found: Found) -> None:
        self._found = found
        if self._found_at is not None:
            try:
                _replace(self._found_at, found)
            except OSError as error:
                raise InternalError(f"What is discovered cannot be kept: {error.strerror}.") from None

    def members(self) -> Mapping[str, Member]:
        """`entries` with the part of each. Raises SettingsError."""
        changes = self._read()
        found = self._of_sources(self._read_found())
        entries = _entries(self._urls, changes, found)
        return {url: Member(self._part(url, changes, found), draining) for url, draining in entries.items()}

    def _part(self, url: str, changes: Changes, found: Mapping[str, Part]) -> Part:
        half = changes.halves.get(url)
        # The settings have come to name one that was added: they say what it is.
        if half is None or (url in self._urls and url in changes.added):
            return self._known_part(url, found)
        return Part(half.role, half.bootstrap_port)

    def _known_part(self, url: str, found: Mapping[str, Part]) -> Part:
        """What a worker is, if no operator says more."""
        return self._parts.get(url, REGULAR) if url in self._urls else found.get(url, REGULAR)

    def add(self, url: str, part: Part | None = None) -> None:
        """None as `part`: what the settings or a source say, else a regular worker.

        Raises WorkerExistsError, InvalidRequestError where there are too many, InternalError.
        """
        with self._board.locked():
            changes = self._latest()
            discovered = self._latest_discovered()
            entries = _entries(self._urls, changes, discovered)
            if _address(url) in map(_address, entries):
                raise WorkerExistsError
            if len(entries) >= MOST_WORKERS:
                raise InvalidRequestError(
                    f"There are {MOST_WORKERS} workers, and no more can be served.", param="url"
                )
            if url in changes.removed:
                changes.removed.remove(url)
            if url not in self._urls and url not in discovered:
                changes.added.append(url)
            if part is not None and part != self._known_part(url, discovered):
                changes.halves[url] = Half(*part)
            self._write(changes)

    def remove(self, url: str) -> None:
        """One that is not there is no error. Raises InternalError."""
        with self._board.locked():
            changes = self._latest()
            if url in changes.added:
                changes.added.remove(url)
            known = url in self._urls or url in self._latest_discovered()
            if known and url not in changes.removed:
                changes.removed.append(url)
            if url in changes.draining:
                changes.draining.remove(url)
            changes.halves.pop(url, None)
            self._write(changes)

    def drain(self, url: str, draining: bool) -> None:
        """Whether a worker takes no new requests from now on. Raises InternalError."""
        with self._board.locked():
            changes = self._latest()
            changes.draining = [one for one in changes.draining if one != url]
            if draining and url in _entries(self._urls, changes, self._latest_discovered()):
                changes.draining.append(url)
            self._write(changes)

    def _latest_discovered(self) -> dict[str, Part]:
        """Raises InternalError."""
        return self._of_sources(self._latest_found())

    def _of_sources(self, found: Found) -> dict[str, Part]:
        workers: dict[str, Part] = {}
        for source in self._sources:
            for url, part in found.get(source, {}).items():
                workers.setdefault(url, part)
        return workers

    def _read(self) -> Changes:
        if self._shared is None:
            return copy.deepcopy(self._kept)
        return _load(self._shared) or Changes()

    def _latest(self) -> Changes:
        """What is to be changed: another server may have changed the file. Raises InternalError."""
        if self._lasting is not None:
            try:
                changes = _usable(self._lasting, self._urls)
                if changes is not None:
                    return changes
            except SettingsError as error:
                _LOG.error("%s; it is written anew", error)
        try:
            return self._read()
        except SettingsError as error:
            raise InternalError(f"The change cannot be made: {error}.") from None

    def _write(self, changes: Changes) -> None:
        for path in (self._lasting, self._shared):
            if path is not None:
                try:
                    _replace(path, changes)
                except OSError as error:
                    raise InternalError(f"The list of workers cannot be kept: {error.strerror}.") from None
        self._kept = changes
        self._board.advance()

    def __repr__(self) -> str:
        return f"<Membership generation={self.generation}>"


def _address(url: str) -> str:
    """The same worker is not called in the clear and over TLS."""
    return url.partition("://")[2]


def _entries(urls: Sequence[str], changes: Changes, discovered: Iterable[str] = ()) -> dict[str, bool]:
    entries = [url for url in urls if url not in changes.removed]
    room = max(len(entries) + len(changes.added), MOST_WORKERS)
    addresses = set(map(_address, entries))
    for url in (*changes.added, *(one for one in discovered if one not in changes.removed)):
        if _address(url) not in addresses and len(entries) < room:
            addresses.add(_address(url))
            entries.append(url)
    return {url: url in changes.draining for url in entries}


def _load(path: Path) -> Changes | None:
    """None if there is no such file. Raises SettingsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Changes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise _unusable(path, str(error)) from None


def _load_found(path: Path) -> Found:
    """Empty if there is no such file. Raises SettingsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Found)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"the list of discovered workers in {path} cannot be used: {error}") from None


def _usable(path: Path, urls: Sequence[str]) -> Changes | None:
    """The changes to `urls`; see `_load`."""
    changes = _load(path)
    if changes is not None and len(_entries(urls, changes)) > MOST_WORKERS:
        raise _unusable(path, f"with it there are more than {MOST_WORKERS} workers")
    return changes


def _unusable(path: Path, why: str) -> SettingsError:
    return SettingsError(f"WORKERS_FILE: the list of workers in {path} cannot be used: {why}")


def _replace(path: Path, changes: Changes | Found) -> None:
    """Raises OSError."""
    replace_file(path, msgspec.json.encode(changes) + b"\n")
