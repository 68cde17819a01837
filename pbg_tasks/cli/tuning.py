"""``pbg tune``, and the steps of a search as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, Override, Patch, Run, Spec, given, show_result
from pbg_tasks.cli.nightly import AcceptData, Keyed, Snapshot, snapshot_key

app = typer.Typer()

Out = Annotated[Path | None, typer.Option(help="File for the values of the best candidate.")]
SearchId = Annotated[str, typer.Argument(help="Id of the search, as `pbg tune-start` prints it.", show_default=False)]
Rung = Annotated[int, typer.Argument(min=0, help="Number of the rung, from 0.", show_default=False)]
Trial = Annotated[str, typer.Argument(help="Name of the candidate.", show_default=False)]


@app.command()
def tune(
    spec: Spec,
    snapshot: Snapshot = None,
    keyed: Keyed = None,
    param: Override = None,
    patch: Patch = None,
    out: Out = None,
    accept_data: AcceptData = None,
    *,
    as_json: Json = False,
) -> None:
    """Search the hyper-parameters of the spec's `tune` on one snapshot."""
    from pbg_tasks.report.tune import table
    from pbg_tasks.tasks.tuning.tune import tune as task

    changes = given(patch, param)
    key = snapshot_key(spec, snapshot, keyed, changes)
    found = task(spec, key, overrides=changes, accept_data=accept_data, out=out)
    if as_json:
        typer.echo(json.dumps(found))
        return
    others = "1 other candidate reaches" if found["alike"] == 1 else f"{found['alike']} other candidates reach"
    noise = f"\n{others} into the interval of the best." if found["alike"] else ""
    typer.echo(f"{table(found)}\n{noise}\n{found['patch']}")


@app.command(name="tune-start")
def tune_start(
    spec: Spec,
    snapshot: Snapshot = None,
    keyed: Keyed = None,
    param: Override = None,
    patch: Patch = None,
    accept_data: AcceptData = None,
    *,
    as_json: Json = False,
) -> None:
    """Check the space, plan the run, and store the search."""
    from pbg_tasks.tasks.tuning.steps import start

    changes = given(patch, param)
    key = snapshot_key(spec, snapshot, keyed, changes)
    show_result(start(spec, key, overrides=changes, accept_data=accept_data), as_json=as_json)


@app.command(name="tune-select")
def tune_select(run: Run, search: SearchId, rung: Rung, *, as_json: Json = False) -> None:
    """Name the candidates of a rung; decide the rung before it."""
    from pbg_tasks.tasks.tuning.steps import select

    show_result(select(run, search, rung), as_json=as_json)


@app.command(name="tune-trial")
def tune_trial(run: Run, search: SearchId, trial: Trial, rung: Rung, *, as_json: Json = False) -> None:
    """Train and rank one candidate to the end of a rung."""
    from pbg_tasks.tasks.tuning.tune import trial as task

    show_result(task(run, search, trial, rung), as_json=as_json)


@app.command(name="tune-finish")
def tune_finish(run: Run, search: SearchId, *, as_json: Json = False) -> None:
    """Decide the last rung and store the best values as a patch."""
    from pbg_tasks.tasks.tuning.steps import finish

    show_result(finish(run, search), as_json=as_json)
