"""Commands of the nightly chain, and of its runs and releases.

There is one command for each task, which takes the run's URL.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbg_tasks.advice import explained, with_spec, with_spec_throughout
from pbg_tasks.cli.common import Json, Override, Patch, Run, Spec, given, is_config, named_spec, show_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

app = typer.Typer()
datasets = typer.Typer(help="Fetch example data.", no_args_is_help=True)
app.add_typer(datasets, name="datasets")

Snapshot = Annotated[
    str | None, typer.Argument(help="Key of the snapshot; the newest one unless given.", show_default=False)
]
Keyed = Annotated[str | None, typer.Option("--snapshot", help="The same as SNAPSHOT.", show_default=False)]
Epochs = Annotated[int | None, typer.Option(min=0, help="Epochs, instead of the spec's.")]
Dimension = Annotated[int | None, typer.Option(min=1, help="Dimension, instead of the spec's.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions, instead of the spec's.")]
Engine = Annotated[Literal["auto", "torch", "native"] | None, typer.Option(help="Engine, instead of the spec's.")]
Publish = Annotated[
    bool | None,
    typer.Option(
        "--publish/--no-publish",
        help="Whether the run may become a release. Unless given, not one whose training an option changes.",
        show_default=False,
    ),
]
AcceptData = Annotated[
    str | None,
    typer.Option(help="Go on even if the data gate or `limits` refuse the night, for this reason.", show_default=False),
]
Due = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%dT%H:%M:%S%z"],
        help="When the snapshot was due, `2026-11-20T02:00:00+00:00`: a missing one may still come (`out_of_turn`).",
        show_default=False,
    ),
]


_OF_TRAINING = re.compile(r"""["']?(model|train|split|columns)["']?[.=]""")  # of a spec; a patch is meant to stay


def _planning(name: str, act: Callable[..., None]) -> None:
    """Register a command that plans a run, with its options.

    Args:
        name: of the command.
        act: takes the spec, the snapshot's key, ``as_json`` and the options of the task ``plan``; has the help.
    """

    def command(
        spec: Spec,
        snapshot: Snapshot = None,
        keyed: Keyed = None,
        param: Override = None,
        patch: Patch = None,
        epochs: Epochs = None,
        dimension: Dimension = None,
        partitions: Partitions = None,
        engine: Engine = None,
        *,
        publish: Publish = None,
        accept_data: AcceptData = None,
        due: Due = None,
        as_json: Json = False,
    ) -> None:
        overrides = given(patch, param)
        changed = any(each is not None for each in (epochs, dimension, partitions, engine)) or any(
            _OF_TRAINING.match(each) for each in param or ()
        )
        if publish is None and changed:
            from pbg_tasks.progress import say

            say("plan: a trial, because an option changes its training: it becomes no release without --publish")
        act(
            spec,
            snapshot_key(spec, snapshot, keyed, overrides),
            as_json=as_json,
            overrides=overrides,
            epochs=epochs,
            dimension=dimension,
            partitions=partitions,
            engine=engine,
            publish=not changed if publish is None else publish,
            accept_data=accept_data,
            due=due,
        )

    command.__doc__ = act.__doc__
    app.command(name=name)(command)


def _plan(spec: Path, snapshot: str, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - plan's options
    """Resolve spec, snapshot and previous release into one stored run."""
    from pbg_tasks.tasks.nightly.plan import plan

    result = plan(spec, snapshot, **options)
    forecasts = ("memory", "forecast", "degrees")  # lines on stderr have them already
    shown = result if as_json else {key: value for key, value in result.items() if key not in forecasts}
    show_result(shown, as_json=as_json)


def _run(spec: Path, snapshot: str, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - plan's options
    """Do all tasks of one snapshot, one after the other."""
    from pbg_tasks.tasks.nightly.chain import run_chain
    from pbg_tasks.tasks.view.tables import table

    summary = run_chain(spec, snapshot, **options)
    typer.echo(json.dumps(summary) if as_json else with_spec(table([summary])))


_planning("plan", _plan)


def _task(name: str, text: str) -> None:
    """Register a command that does a task of a run, or several."""

    def command(run: Run, *, as_json: Json = False) -> None:
        from pbg_tasks.config.airflow import TOGETHER
        from pbg_tasks.tasks.nightly.chain import run_task, run_together

        act = run_together if name in TOGETHER else run_task
        show_result(act(name, run), as_json=as_json)

    command.__doc__ = text
    app.command(name=name)(command)


_task("validate", "Check every row of the run's snapshot.")
_task("partition", "Give every entity its partition and offset.")
_task("bucket", "Hold edges out and write the others by partition.")
_task("preserve", "Keep the trained version with its names.")
_task("drift", "Measure how far the vectors moved since the release before.")
_task("gate", "Compare with the release before.")
_task("publish", "Point the channel to the run.")
_task("prepare", "Do validate, partition and bucket in one process.")
_task("finish", "Do preserve, eval, drift, gate and publish in one process.")


@app.command(name="export-release")
def export_release(
    run: Run,
    name: Annotated[str, typer.Argument(help="Name of the export in the spec.", show_default=False)],
    part: Annotated[
        str | None, typer.Option(help="i/n: only write the files of one share of the partitions.", show_default=False)
    ] = None,
    parts: Annotated[
        int | None, typer.Option(min=1, help="Make the export of so many parts.", show_default=False)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Write one of the exports of the run's spec."""
    from pbg_tasks.tasks.nightly.export_release import export_release as task
    from pbg_tasks.tasks.nightly.export_release import export_release_part

    if part is not None and parts is not None:
        raise typer.BadParameter("--parts: makes the export of all parts; leave --part out")
    show_result(task(run, name, parts) if part is None else export_release_part(run, name, part), as_json=as_json)


@app.command()
def announced(
    run: Run,
    task: Annotated[str, typer.Argument(help="`publish`, or `export-NAME`.", show_default=False)],
    *,
    as_json: Json = False,
) -> None:
    """Record that a release or an export was announced.

    Schedulers call it after their announcements.
    """
    from pbg_tasks.tasks.announcing import announced as remember

    show_result(remember(run, task), as_json=as_json)


_planning("run", _run)


def snapshot_key(spec: Path, named: str | None, keyed: str | None, overrides: Sequence[str] | None) -> str:
    """Return the snapshot that is named, or the newest one."""
    if named is not None and keyed is not None:
        raise typer.BadParameter("--snapshot: is SNAPSHOT, which is given too; leave one of them out")
    if (key := keyed if named is None else named) is not None:
        return key
    from pbg_tasks.config import load_graph_spec
    from pbg_tasks.progress import say
    from pbg_tasks.tasks.nightly.newest import newest_snapshot

    newest = newest_snapshot(load_graph_spec(spec, overrides))
    say(f"plan: {newest} is the newest snapshot")
    return newest


@app.command()
def show(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SPEC|STORE",
            help="A run's URL, or a graph spec or store: its releases, days refused, skipped or failed since, and the "
            "run of the newest release.",
            show_default=False,
        ),
    ],
    task: Annotated[str | None, typer.Option(help="Only the result of this task of a run.", show_default=False)] = None,
    *,
    log: Annotated[bool, typer.Option("--log", help="With --json: write the table of a run to stderr.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run, or a graph's releases and the served run."""
    from pbg_tasks.progress import say
    from pbg_tasks.tasks.context import names_run
    from pbg_tasks.tasks.view.show import overview, show_task
    from pbg_tasks.tasks.view.show import show as collect
    from pbg_tasks.tasks.view.tables import outcome, overview_table, table

    if task is not None:
        show_result(show_task(target, task), as_json=as_json)
    elif is_config(target) or not names_run(target):
        found = overview(named_spec(Path(target)) if is_config(target) else target)
        typer.echo(json.dumps(with_spec_throughout(found)) if as_json else explained(with_spec(overview_table(found))))
    else:
        summary = collect(target)
        if log:
            for line in table([summary]).splitlines():
                say(line)
        shown = "\n\n".join(filter(None, (table([summary]), outcome(summary))))
        typer.echo(json.dumps(summary) if as_json else explained(shown))


@app.command()
def report(
    target: Annotated[
        str, typer.Argument(metavar="RUN|SPEC", help="A run's URL, or a graph spec: all its runs.", show_default=False)
    ],
    *,
    as_json: Json = False,
) -> None:
    """Write the pages about a run or all runs of a graph.

    They are stored beside the data.
    """
    from pbg_tasks.tasks.view import report as reporting

    if not is_config(target):
        show_result(reporting.report(target), as_json=as_json)
        return
    found = reporting.report_graph(named_spec(Path(target)))
    if not as_json:  # the page of a run links its other ones
        found["pages"] = [page for page in found["pages"] if page.endswith("/index.html")]
    show_result(found, as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a graph spec."""
    from pbg_tasks.config.reference import spec_schema

    typer.echo(json.dumps(spec_schema(), indent=2))


@datasets.command()
def wordnet(
    dest: Annotated[str, typer.Argument(help="Folder or s3:// prefix to write the snapshots to.", show_default=False)],
    archive: Annotated[Path | None, typer.Option(help="The source archive, when there is no network.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Write WordNet 3.0 and 3.1 as two snapshots of one graph."""
    from pbg_tasks.datasets.wordnet import write_wordnet

    snapshots = write_wordnet(dest, archive=archive)
    show_result({summary.snapshot: summary.to_json() for summary in snapshots}, as_json=as_json)
