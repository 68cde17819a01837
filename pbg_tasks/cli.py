"""The ``pbg`` command: one subcommand a task. It parses and prints; the work is in ``tasks``.

Results go to stdout (one JSON object with ``--json``), progress and errors to stderr. The exit status is the error's
category (``pbg_tasks.errors``). Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pbg_tasks import __version__
from pbg_tasks.errors import PbgError, ResourceError

app = typer.Typer(
    name="pbg",
    help="Embed a large multi-relation graph every night: partition, bucket, train, evaluate, publish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
datasets = typer.Typer(help="Fetch example data.", no_args_is_help=True)
app.add_typer(datasets, name="datasets")

Spec = Annotated[Path, typer.Argument(help="Graph spec, a YAML file.", show_default=False)]
Run = Annotated[str, typer.Argument(help="The run's URL, as `pbg plan` prints it.", show_default=False)]
Snapshot = Annotated[str, typer.Option(help="Key of the snapshot.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Override = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="KEY.PATH=VALUE", help="Change a key of the spec.")
]
Epochs = Annotated[int | None, typer.Option(min=0, help="Epochs, instead of the spec's.")]
Dimension = Annotated[int | None, typer.Option(min=1, help="Dimension, instead of the spec's.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions, instead of the spec's.")]
Engine = Annotated[Literal["auto", "torch"] | None, typer.Option(help="Engine, instead of the spec's.")]
Publish = Annotated[bool, typer.Option("--publish/--no-publish", help="Whether the run may become a release.")]


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    for key, value in result.items():
        typer.echo(f"{key}: {json.dumps(value) if isinstance(value, dict | list) else value}")


@app.command()
def plan(
    spec: Spec,
    snapshot: Snapshot,
    param: Override = None,
    epochs: Epochs = None,
    dimension: Dimension = None,
    partitions: Partitions = None,
    engine: Engine = None,
    *,
    publish: Publish = True,
    as_json: Json = False,
) -> None:
    """Resolve spec, snapshot and previous release into one stored run."""
    from pbg_tasks.tasks.plan import plan as task

    result = task(
        spec,
        snapshot,
        overrides=param,
        epochs=epochs,
        dimension=dimension,
        partitions=partitions,
        engine=engine,
        publish=publish,
    )
    _print(result, as_json=as_json)


def _task(name: str, text: str) -> None:
    """Register a command that takes a run's URL."""

    def command(run: Run, *, as_json: Json = False) -> None:
        from pbg_tasks.tasks.chain import run_task

        _print(run_task(name, run), as_json=as_json)

    command.__doc__ = text
    app.command(name=name)(command)


_task("validate", "Check every row of the run's snapshot.")
_task("partition", "Give every entity its partition and offset.")
_task("bucket", "Hold edges out and write the others by partition.")
_task("train", "Train to the end, from the last committed epoch.")
_task("preserve", "Keep the trained version with its names.")
_task("eval", "Rank held-out edges against all entities.")
_task("gate", "Compare with the release before.")
_task("publish", "Point the channel to the run.")


@app.command(name="run")
def run_all(
    spec: Spec,
    snapshot: Snapshot,
    param: Override = None,
    epochs: Epochs = None,
    dimension: Dimension = None,
    partitions: Partitions = None,
    engine: Engine = None,
    *,
    publish: Publish = True,
    as_json: Json = False,
) -> None:
    """Do all tasks of one snapshot, one after the other."""
    from pbg_tasks.tasks.chain import run_chain
    from pbg_tasks.tasks.show import table

    summary = run_chain(
        spec,
        snapshot,
        overrides=param,
        epochs=epochs,
        dimension=dimension,
        partitions=partitions,
        engine=engine,
        publish=publish,
    )
    typer.echo(json.dumps(summary) if as_json else table([summary]))


@app.command()
def show(run: Run, *, as_json: Json = False) -> None:
    """Show everything known of a run."""
    from pbg_tasks.tasks.show import show as task
    from pbg_tasks.tasks.show import table

    summary = task(run)
    typer.echo(json.dumps(summary) if as_json else table([summary]))


@app.command()
def rollback(
    spec: Spec,
    to: Annotated[int | None, typer.Option(min=1, help="Release to go back to; the one before by default.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Point the channel back to an earlier release."""
    from pbg_tasks.tasks.publish import rollback as task

    _print(task(spec, to=to), as_json=as_json)


@app.command()
def releases(spec: Spec, *, as_json: Json = False) -> None:
    """List the releases of a graph's channel."""
    from pbg_tasks.tasks.show import history, history_table

    listed = history(spec)
    typer.echo(json.dumps(listed) if as_json else history_table(listed))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a graph spec."""
    from pbg_tasks.config import GraphSpec

    typer.echo(json.dumps(GraphSpec.model_json_schema(), indent=2))


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
    _print({summary.snapshot: summary.to_json() for summary in snapshots}, as_json=as_json)


@app.callback(invoke_without_command=True)
def _version(
    *, version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"pbg {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; every failure ends in one line ``error: kind: text`` and the exit status of its kind."""
    try:
        app()
    except PbgError as error:
        _fail(error)
    except MemoryError:
        _fail(ResourceError("out of memory; lower resources.memory_gb or raise num_partitions"))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _fail(
            ResourceError(f"no room left on the disk of {error.filename or 'the scratch directory'}; set PBG_SCRATCH")
        )


def _fail(error: PbgError) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error.kind}: {error}\n")
    sys.exit(error.exit_code)
