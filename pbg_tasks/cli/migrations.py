"""Commands that migrate rows, once and on request.

They adopt an existing checkpoint, or move a release to other partitions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Spec, show_result

app = typer.Typer()


@app.command()
def adopt(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint directory of PBG or of this package.", show_default=False)
    ],
    entities: Annotated[str, typer.Argument(help="The entity path, with its names.", show_default=False)],
    spec: Spec,
    snapshot: Annotated[str, typer.Option(help="Key of night zero; it comes before those of all nights.")] = "0",
    *,
    as_json: Json = False,
) -> None:
    """Make an existing checkpoint the first release of a graph.

    The first night continues it.
    """
    from pbg_tasks.tasks.release.adopt import adopt as task

    show_result(task(checkpoint, entities, spec, snapshot=snapshot), as_json=as_json)


@app.command()
def repartition(
    spec: Spec,
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions, instead of the spec's.")] = None,
    *,
    compact: Annotated[
        bool, typer.Option("--compact", help="Drop entities that vanished.nights nights have not seen.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Move a release's rows to other partitions.

    The result is a release of the channel that the next night continues.
    """
    from pbg_tasks.tasks.release.repartition import repartition as task

    show_result(task(spec, partitions=partitions, compact=compact), as_json=as_json)
