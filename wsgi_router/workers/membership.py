"""The list of workers: that of the settings, and what was changed of it while running.

All processes of a server serve the same list. The changes stand in a file, replaced as a whole; the board's
generation says that there are new ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from wsgi_router.errors import InternalError, InvalidRequestError, RouterError
from wsgi_router.settings import MOST_WORKERS, SettingsError, worker_url
from wsgi_router.workers.board import Board

_FILE: Final = "workers.json"


class Changes(msgspec.Struct, forbid_unknown_fields=True):
    """Workers by their URLs."""

    added: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)
    draining: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        """URLs as the settings have them: a kept file may be edited by hand. ValueError."""
        for urls in (self.added, self.removed, self.draining):
            urls[:] = map(worker_url, urls)


class WorkerExistsError(RouterError):
    status = 409
    code = "worker_exists"

    def __init__(self) -> None:
        super().__init__("There is such a worker already.", param="url")


class Membership:
    """`urls`: the settings' workers. `path`: the file for the changes, if they are to outlive the server."""

    def __init__(self, urls: Sequence[str], board: Board, path: str = "") -> None:
        self._urls = urls
        self._board = board
        self._path = Path(path) if path else board.folder and board.folder / _FILE
        self._kept = Changes()  # where there is no file

    @property
    def generation(self) -> int:
        """Another one means that `entries` may have changed."""
        return self._board.generation

    def entries(self) -> Mapping[str, bool]:
        """The workers' URLs in order, and whether each takes no new requests. Raises SettingsError."""
        changes = self._read()
        urls = [url for url in self._urls if url not in changes.removed]
        urls += [url for url in changes.added if url not in urls]
        return {url: url in changes.draining for url in urls}

    def add(self, url: str) -> None:
        """Raises WorkerExistsError, InvalidRequestError where there are too many, InternalError."""
        with self._board.locked():
            entries = self.entries()
            if _address(url) in map(_address, entries):
                raise WorkerExistsError
            if len(entries) >= MOST_WORKERS:
                raise InvalidRequestError(
                    f"There are {MOST_WORKERS} workers, and no more can be served.", param="url"
                )
            changes = self._read()
            if url in changes.removed:
                changes.removed.remove(url)
            else:
                changes.added.append(url)
            self._write(changes)

    def remove(self, url: str) -> None:
        """One that is not there is no error. Raises InternalError."""
        with self._board.locked():
            changes = self._read()
            if url in changes.added:
                changes.added.remove(url)
            if url in self._urls and url not in changes.removed:
                changes.removed.append(url)
            if url in changes.draining:
                changes.draining.remove(url)
            self._write(changes)

    def drain(self, url: str, draining: bool) -> None:
        """Whether a worker takes no new requests from now on. Raises InternalError."""
        with self._board.locked():
            changes = self._read()
            changes.draining = [one for one in changes.draining if one != url]
            if draining and url in self.entries():
                changes.draining.append(url)
            self._write(changes)

    def _read(self) -> Changes:
        if self._path is None:
            return self._kept
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Changes)
        except FileNotFoundError:
            return Changes()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SettingsError(f"the list of workers in {self._path} cannot be read: {error}") from None

    def _write(self, changes: Changes) -> None:
        if self._path is None:
            self._kept = changes
        else:
            new = self._path.with_name(self._path.name + ".new")
            try:
                new.write_bytes(msgspec.json.encode(changes) + b"\n")
                os.replace(new, self._path)
            except OSError as error:
                raise InternalError(f"The list of workers cannot be kept: {error.strerror}.") from None
        self._board.advance()

    def __repr__(self) -> str:
        return f"<Membership generation={self.generation}>"


def _address(url: str) -> str:
    """The same worker is not called in the clear and over TLS."""
    return url.partition("://")[2]
