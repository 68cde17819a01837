"""``pbg info`` and ``pbg verify``: what an installation can do, and what a directory holds."""

from __future__ import annotations

from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Override, show_result

app = typer.Typer()


@app.command()
def info(
    config: Annotated[
        str | None, typer.Argument(help="Say which engine trains this PBG config, and why.", metavar="CONFIG")
    ] = None,
    param: Override = None,
    *,
    as_json: Json = False,
) -> None:
    """Print versions, engines, the CPU's instruction set, and what the native engine leaves to torch."""
    if param and config is None:
        raise typer.BadParameter("--param: only with a CONFIG, of which it changes a key")
    from pbg_tasks.tasks.view.info import info as task

    show_result(task(config, param), as_json=as_json)


@app.command()
def verify(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|RUN|RELEASE",
            help="What `pbg import` wrote, a checkpoint, a run, a release or an export; local or s3://.",
            show_default=False,
        ),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Compare files with their manifests, by size and hash, and say what no manifest lists."""
    from pbg_tasks.tasks.view.verify import verify as task

    show_result(task(place), as_json=as_json)
