"""Options that commands share, and output of results."""

from __future__ import annotations

import json
import math
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbg_tasks.advice import name_spec, with_spec
from pbg_tasks.cli.brief_results import brief, rest_of
from pbg_tasks.cli.result_lines import result_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_FLAGS = ("-p", "--param")
_ASSIGNMENT = re.compile(r"""([A-Za-z_]\w*)(?:\.[^=]*)?=""")


def spread_overrides(arguments: Sequence[str]) -> list[str]:
    """Return arguments with a flag before each override.

    ``-p a=1 b=2`` becomes ``-p a=1 -p b=2``. An argument after an override is one, too, when it assigns to a key that
    configs or graph specs have, or else can be no path: of a misspelt key the error then names the nearest one.
    Anything else is an argument of the command, such as the path ``day=2026-11-20/edges.tsv``.
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

    if any(spelling(model, match[1]) in model.model_fields for model in (ConfigSchema, GraphSpec)):
        return True
    return "/" not in argument and not any(fnmatchcase(each.name, argument) for each in Path().iterdir())


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Override = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY.PATH=VALUE", help="Change a key of the spec or config."),
]
Patch = Annotated[
    Path | None,
    typer.Option(help="YAML file with values by key path, as `pbg tune --out` writes it; -p goes before it."),
]


def named_spec(spec: Path) -> Path:
    """Note the graph spec that this command was given, and return it."""
    if spec is not None:  # as while the shell completes a command
        name_spec(spec)
    return spec


Spec = Annotated[Path, typer.Argument(help="Graph spec, a YAML file.", show_default=False, callback=named_spec)]
Run = Annotated[str, typer.Argument(help="The run's URL, as `pbg plan` prints it.", show_default=False)]


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


def number(value: float | None) -> float | None:
    """Refuse NaN, which older versions of Typer take as in range.

    Raises:
        BadParameter: it is.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


def finite(value: float | None) -> float | None:
    """Refuse NaN, and infinity, which is within a range without an end.

    Raises:
        BadParameter: it is one of them.
    """
    if value is not None and math.isinf(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return number(value)


CONFIG_SUFFIXES = (".py", ".json", ".yaml", ".yml")


def is_config(target: str) -> bool:
    """Return whether an argument names a PBG config."""
    return target.lower().endswith(CONFIG_SUFFIXES)


def show_result(result: Mapping[str, object], *, as_json: bool) -> None:
    """Print a task's result on stdout."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    for line in result_lines(brief(result)):
        typer.echo(with_spec(line))
    if rest := rest_of(result):
        typer.echo(rest)


def show_value(value: Any, *, as_json: bool) -> None:  # noqa: ANN401 - any JSON value
    """Print any JSON value on stdout; a text is printed bare."""
    if isinstance(value, str) and not as_json:
        typer.echo(value)
    else:
        typer.echo(json.dumps(value, indent=None if as_json else 4))
