"""Options that commands share, and output of results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_GROUPED = 10_000  # whole numbers from here on have commas: a year is no such number
_FLAGS = ("-p", "--param")
_ASSIGNMENT = re.compile(r"""([A-Za-z_]\w*)(?:\.[^=]*)?=""")


def spread_overrides(arguments: Sequence[str]) -> list[str]:
    """Return arguments with a flag before each override.

    ``-p a=1 b=2`` becomes ``-p a=1 -p b=2``. An argument after an override is one, too, when it assigns to a key that
    configs or graph specs have. Anything else is an argument of the command, such as the path
    ``day=2026-11-20/edges.tsv``.
    """
    spread: list[str] = []
    after_override = False  # whether the next argument may be an override without a flag
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*spread, *arguments[position:]]
        if spread and spread[-1] in _FLAGS:
            after_override = True
        elif argument.startswith("-"):
            after_override = argument.startswith(("--param=", "-p")) and argument not in _FLAGS
        elif after_override and _is_override(argument):
            spread.append(_FLAGS[0])
        else:
            after_override = False
        spread.append(argument)
    return spread


def _is_override(argument: str) -> bool:
    match = _ASSIGNMENT.match(argument)
    if match is None:
        return False
    from pbg_tasks.config import ConfigSchema, GraphSpec  # a slow import, for which other commands need not wait
    from pbg_tasks.config.legacy import spelling

    return any(spelling(model, match[1]) in model.model_fields for model in (ConfigSchema, GraphSpec))


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Override = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="KEY.PATH=VALUE", help="Change a key of the spec.")
]
Patch = Annotated[
    Path | None,
    typer.Option(help="YAML file with values by key path, as `pbg tune --out` writes it; -p goes before it."),
]


def given(patch: Path | None, param: Sequence[str] | None) -> list[str]:
    """Return the changes of a patch, and then those of ``-p``.

    Raises:
        ConfigError: the file cannot be read, or is no patch.
    """
    if patch is None:
        return [*(param or ())]
    from pbg_tasks.config.tune_space import read_patch

    return [*read_patch(patch), *(param or ())]


def flag(option: str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{option.replace('_', '-')}"


def refuse(why: str, **options: object) -> None:
    """Refuse options that were given, with the reason.

    Raises:
        BadParameter: one is not None.
    """
    if given := [flag(name) for name, value in options.items() if value is not None]:
        raise typer.BadParameter(f"{', '.join(given)}: {why}")


CONFIG_SUFFIXES = (".py", ".json", ".yaml", ".yml")


def is_config(target: str) -> bool:
    """Return whether an argument names a PBG config."""
    return target.lower().endswith(CONFIG_SUFFIXES)


def show_result(result: Mapping[str, object], *, as_json: bool) -> None:
    """Print a task's result on stdout."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    for line in _lines(result):
        typer.echo(line)


def _lines(result: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield a result as lines for people, parts of a part indented.

    Figures come before parts; what a part leaves open is left out.
    """
    known = {key: value for key, value in result.items() if value or not isinstance(value, _OPEN) or not indent}
    width = max((len(key) for key in known), default=0) + 1
    for key, value in sorted(known.items(), key=lambda item: _is_part(item[1])):
        if not _is_part(value):
            yield f"{indent}{f'{key}:'.ljust(width)} {_text(value)}"
            continue
        yield f"{indent}{key}:"
        if isinstance(value, dict):
            yield from _lines(value, f"{indent}  ")
        else:
            yield from (f"{indent}  {_sentence(each) or _text(each)}" for each in value)


_OPEN = (dict, list, tuple, type(None))


def _is_part(value: Any) -> TypeGuard[dict[str, object] | list[object] | tuple[object, ...]]:  # noqa: ANN401 - any JSON value
    """Return whether a value takes lines of its own."""
    if isinstance(value, list | tuple):
        return any(isinstance(each, dict | list) for each in value)
    return isinstance(value, dict) and bool(value)


def _sentence(value: object) -> str:
    """Return verdict and sentence of a check; empty for anything else."""
    if not isinstance(value, dict) or not value.keys() >= {"sentence", "passed", "name"}:
        return ""
    verdict = "warned" if value.get("warned") else "passed" if value["passed"] else "not passed"
    return f"{verdict}: {value['sentence']} ({value['name']})"


def _text(value: object) -> str:
    """Return a value as text for people."""
    if isinstance(value, dict) and value:
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple) and value:
        return ", ".join(_text(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= _GROUPED):
        return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"
    return str(value) if value or value == 0 else "-"


def show_value(value: Any, *, as_json: bool) -> None:  # noqa: ANN401 - any JSON value
    """Print any JSON value on stdout; a text is printed bare."""
    if isinstance(value, str) and not as_json:
        typer.echo(value)
    else:
        typer.echo(json.dumps(value, indent=None if as_json else 4))
