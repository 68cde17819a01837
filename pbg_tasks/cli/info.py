"""``pbg info``: what this installation can do on this machine."""

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
    from pbg_tasks.tasks.info import info as task

    show_result(task(config, param), as_json=as_json)
