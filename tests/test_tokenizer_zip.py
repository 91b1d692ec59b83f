"""The tokenizer's zip: which files, the same bytes for the same files, and its pieces."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

from wsgi_router.worker_api.tokenizer_zip import zip_chunks, zip_tokenizer


def test_copies_of_the_same_files_give_the_same_zip(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "merges.txt", "model.safetensors", "notes.md"):
        (first / name).write_text(name * 100)
    shutil.copytree(first, second, copy_function=shutil.copyfile)
    assert zip_tokenizer(first) == zip_tokenizer(second)
    with zipfile.ZipFile(io.BytesIO(zip_tokenizer(first))) as archive:
        assert archive.namelist() == ["chat_template.jinja", "merges.txt", "tokenizer.json"]


def test_a_single_file(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with zipfile.ZipFile(io.BytesIO(zip_tokenizer(file))) as archive:
        assert archive.namelist() == ["tokenizer.json"]


def test_only_the_last_piece_has_the_digest() -> None:
    pieces = list(zip_chunks(b"x" * 25, size=10))
    assert [len(piece.data) for piece in pieces] == [10, 10, 5]
    assert [len(piece.sha256) for piece in pieces] == [0, 0, 64]
