"""The command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.processes import ROOT
from wsgi_router import cli, settings


def test_settings_and_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["settings"]) == 0
    assert capsys.readouterr().out == settings.markdown_table()
    assert cli.main(["example"]) == 0
    assert capsys.readouterr().out == settings.toml_example()


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 0
    assert "tokenizers: from the workers" in capsys.readouterr().out
    path = str(tiny.write(tmp_path))
    monkeypatch.setenv("WSGI_ROUTER_TOKENIZERS", f"org/other={path}")
    assert cli.main(["check"]) == 0
    output = capsys.readouterr().out
    assert "tokenizer of org/other: {" in output
    assert "tokenizers of other models: from their workers" in output
    monkeypatch.setenv("WSGI_ROUTER_TOKENIZER_PATH", path)
    monkeypatch.setenv("WSGI_ROUTER_API_KEYS", "secret")
    monkeypatch.setenv("WSGI_ROUTER_WORKR", "x")
    capsys.readouterr()
    assert cli.main(["check"]) == 0
    output = capsys.readouterr().out
    assert "vocab_size" in output
    assert "WSGI_ROUTER_WORKR" in output
    assert "secret" not in output


def test_who_reads_may_have_enough() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "wsgi_router", "settings"]
    done = subprocess.run(command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_bad_setting_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WSGI_ROUTER_POLICY", "fastest")
    for command in ("check", "serve"):
        assert cli.main([command]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "WSGI_ROUTER_POLICY" in error


@pytest.mark.parametrize("processes", ["abc", "0", "-1"])
def test_a_bad_number_of_processes_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], processes: str
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", processes)
    monkeypatch.setattr(os, "execv", lambda *args: pytest.fail("started"))
    assert cli.main(["serve"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "WEB_CONCURRENCY" in error


def test_serve_becomes_gunicorn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[Any] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "execv", lambda *args: called.append(args[1]))
    cli.main(["serve", "--workers", "3"])
    # With -m, gunicorn's own folder comes first on the path of the master that USR2 makes.
    assert called[0] == [
        str(Path(sys.executable).with_name("gunicorn")),
        "-c",
        "gunicorn.conf.py",
        "--workers",
        "3",
    ]
    monkeypatch.chdir(tmp_path)
    cli.main(["serve"])
    assert called[1][2] == "python:wsgi_router.gunicorn_conf"
    assert cli.main(["serve", "-c", str(tmp_path / "none.py")]) == 1
    with pytest.raises(SystemExit):
        cli.main(["check", "--workers", "3"])
