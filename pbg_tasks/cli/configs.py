"""``pbg config``: a PBG config with defaults and changes."""

from __future__ import annotations

from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Override, show_value

app = typer.Typer()


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
