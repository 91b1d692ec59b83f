"""What README.md and conf/router.toml show of the settings: made from their table."""

from __future__ import annotations

from wsgi_router.setting_sources import PREFIX, Fields


def _default_text(value: object) -> str:
    """A default as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return (
        f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def markdown_table(fields: Fields) -> str:
    """The table of settings in README.md."""
    lines = ["| Setting | Default | What for |", "|---|---|---|"]
    for name, field in fields.items():
        default = _default_text(field.default)
        lines.append(f"| `{PREFIX}{name.upper()}` | `{default}` | {field.metadata['reason']} |")
    return "\n".join(lines) + "\n"


def toml_example(fields: Fields) -> str:
    """conf/router.toml: every setting at its default."""
    lines = [
        "# Settings of the router; name this file in WSGI_ROUTER_CONFIG.",
        "# Every line shows the default. The environment (WSGI_ROUTER_<NAME>) wins over this file.",
    ]
    for name, field in fields.items():
        lines += ["", f"# {field.metadata['reason']}", f"{name} = {_default_text(field.default)}"]
    return "\n".join(lines) + "\n"
