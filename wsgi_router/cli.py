"""`wsgi-router`: serve, check, settings, example."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from wsgi_router import settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="wsgi-router", description="A router for SGLang workers.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve with gunicorn; further arguments are gunicorn's")
    serve.add_argument(
        "-c",
        "--config",
        type=Path,
        help="gunicorn's configuration; default: gunicorn.conf.py here, else the router's own",
    )
    commands.add_parser("check", help="load settings and tokenizers, and say what they are")
    commands.add_parser("settings", help="print the table of settings (Markdown)")
    commands.add_parser("example", help="print a settings file with all defaults (TOML)")
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "serve":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        code = _run(options, rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at the end
        return 1
    except settings.SettingsError as error:
        print(f"wsgi-router: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if options.command == "serve":
        return _serve(options.config, rest)
    if options.command == "check":
        return _check()
    print(settings.markdown_table() if options.command == "settings" else settings.toml_example(), end="")
    return 0


def _serve(config: Path | None, rest: list[str]) -> int:
    """Becomes gunicorn's master. Returns only if there is no such configuration."""
    settings.load()
    settings.processes(os.environ)
    if config is not None and not config.is_file():
        print(f"wsgi-router: there is no file {config}", file=sys.stderr)
        return 1
    command = [*gunicorn_command(), "-c", _configuration(config), *rest]
    os.execv(command[0], command)


def gunicorn_command() -> list[str]:
    """What starts gunicorn: its script beside this interpreter, where there is one.

    With `-m gunicorn` a new master after USR2 would find gunicorn's own modules in place of the library's.
    """
    script = Path(sys.executable).with_name("gunicorn")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "gunicorn"]


def _configuration(named: Path | None) -> str:
    """The file that was named, else gunicorn.conf.py in the working directory, else the router's own."""
    file = named or Path("gunicorn.conf.py")
    return str(file) if file.is_file() else "python:wsgi_router.gunicorn_conf"


def _check() -> int:
    from wsgi_router import native, tls, tokenizer_store
    from wsgi_router.workers import membership, pods

    configured = settings.load()
    for name in settings.unknown_variables(os.environ):
        print(f"warning: {name} sets nothing")
    for name, field in settings.FIELDS.items():
        value = getattr(configured, name)
        print(f"{name} = {value!r}" if field.repr or not value else f"{name} = (hidden)")
    tls.load(configured)
    pods.check(configured)
    membership.read(configured)
    tokenizer_store.check(configured.tokenizer_cache)
    tokenizers = native.load_tokenizers(configured)
    for model, tokenizer in tokenizers.items():
        print(f"tokenizer{f' of {model}' if model else ''}: {tokenizer.info}")
    if native.DEFAULT not in tokenizers:
        print(
            "tokenizers of other models: from their workers" if tokenizers else "tokenizers: from the workers"
        )
    return 0
