"""The processes of a server, played in one: each has a row of the mappings that they share."""

from __future__ import annotations

from pathlib import Path

from wsgi_router.peers import Peers
from wsgi_router.workers.board import Board


class Server:
    """The master's part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board = Board(folder)
        self.peers = Peers(self.board)

    def end(self, member: Member) -> None:
        """As the master does when a process has died."""
        self.peers.clear(member.row)
        self.board.free_row(member.row)


class Member:
    """A process: its board and peers are its own objects on the same memory."""

    def __init__(self, server: Server) -> None:
        row = server.board.take_row()
        assert row is not None
        self.row = row
        self.board = Board(server.folder)
        self.board._cells = server.board._cells
        self.board.use_row(row)
        self.peers = Peers(self.board)
        self.peers._cells = server.peers._cells
        self.peers.beat()
