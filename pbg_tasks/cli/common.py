"""What all commands share: options and how a result is printed."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Override = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="KEY.PATH=VALUE", help="Change a key of the spec.")
]


CONFIG_SUFFIXES = (".py", ".json", ".yaml", ".yml")


def is_config(target: str) -> bool:
    """Whether an argument names a PBG config."""
    return target.lower().endswith(CONFIG_SUFFIXES)


def show_result(result: dict[str, Any], *, as_json: bool) -> None:
    """Print a task's result on stdout."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    for key, value in result.items():
        typer.echo(f"{key}: {json.dumps(value) if isinstance(value, dict | list) else value}")


def show_value(value: Any, *, as_json: bool) -> None:  # noqa: ANN401 - any JSON value
    """Print a value that may be anything on stdout: a text bare, all else as JSON."""
    if isinstance(value, str) and not as_json:
        typer.echo(value)
    else:
        typer.echo(json.dumps(value, indent=None if as_json else 4))
