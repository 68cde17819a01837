"""``pbg info`` and ``pbg verify``: installation and stored files."""

from __future__ import annotations

from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Override, show_result

app = typer.Typer()


@app.command()
def info(
    config: Annotated[
        str | None, typer.Argument(help="Report which engine trains this PBG config, and why.", metavar="CONFIG")
    ] = None,
    param: Override = None,
    *,
    as_json: Json = False,
) -> None:
    """Print versions, engines, instruction set, and limits of the native engine.

    Parts of a config that the native engine lacks are computed by torch.
    """
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
