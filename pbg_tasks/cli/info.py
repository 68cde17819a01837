"""``pbg info``, ``pbg keys``, ``pbg config`` and ``pbg verify``: what is there."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Override, show_result, show_value

app = typer.Typer()


@app.command()
def info(
    config: Annotated[
        str | None,
        typer.Argument(
            help="Report which engine trains this PBG config or graph spec, and why.", metavar="CONFIG|SPEC"
        ),
    ] = None,
    param: Override = None,
    *,
    as_json: Json = False,
) -> None:
    """Print versions, engines, instruction set, and limits of the native engine.

    Parts of a config that the native engine lacks are computed by torch.
    """
    if param and config is None:
        raise typer.BadParameter("--param: only with a CONFIG or SPEC, of which it changes a key")
    from pbg_tasks.tasks.view.info import info as task

    show_result(task(config, param), as_json=as_json)


@app.command()
def keys(
    prefix: Annotated[
        str, typer.Argument(help="A section or key, such as gates or gates.min_mrr; the last part alone will do.")
    ] = "",
    *,
    as_json: Json = False,
) -> None:
    """Print the keys of a graph spec with type, default and meaning.

    NAME stands for a name of yours, [] for each item of a list.
    """
    from pbg_tasks.config.base import did_you_mean
    from pbg_tasks.config.reference import matching

    found = matching(prefix)
    if not found:
        hint = did_you_mean(prefix, (each.path for each in matching("")), cutoff=0.8) or "`pbg keys` prints all"
        raise typer.BadParameter(f"{prefix}: a graph spec has no such key; {hint}")
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in found]))
        return
    for each in found:
        default = each.default if each.default == "required" else f"default {each.default}"
        typer.echo(f"{each.path}: {each.type}, {default}\n    {each.meaning}")


@app.command()
def config(
    config: Annotated[
        str, typer.Argument(help="PBG config: .py, .json, .yaml; local or s3://.", metavar="CONFIG", show_default=False)
    ],
    key: Annotated[
        str | None, typer.Argument(help="Print this key only, e.g. relations.0.operator.", metavar="KEY.PATH")
    ] = None,
    param: Override = None,
    *,
    as_json: Json = False,
) -> None:
    """Print a PBG config as PBG would store it, or one key."""
    from pbg_tasks.tasks.directory.configs import show_config

    show_value(show_config(config, key, param or ()), as_json=as_json)


@app.command()
def verify(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|RUN|RELEASE",
            help="Output of `pbg import`, a checkpoint, a run, a release or an export; local or s3://.",
            show_default=False,
        ),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Compare files with their manifests, by size and hash.

    Files that no manifest lists are reported.
    """
    from pbg_tasks.tasks.view.verify import verify as task

    show_result(task(place), as_json=as_json)
