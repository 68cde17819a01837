"""The ``pbg`` command: one subcommand a task. It parses and prints; the work is in ``tasks``.

Results go to stdout (one JSON object with ``--json``), progress and errors to stderr. The exit status is the error's
category (``pbg_tasks.errors``). Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from pbg_tasks import __version__
from pbg_tasks.cli import configs, exchange, info, migrations, models, nightly, releases, transfer
from pbg_tasks.errors import PbgError, ResourceError

app = typer.Typer(
    name="pbg",
    help="Embed a large multi-relation graph every night: partition, bucket, train, evaluate, publish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(nightly.app)
app.add_typer(releases.app)
app.add_typer(migrations.app)
app.add_typer(models.app)
app.add_typer(configs.app)
app.add_typer(info.app)
app.add_typer(transfer.app)
app.add_typer(exchange.app)


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
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch's words for it
            raise
        _fail(ResourceError("out of memory; lower dimension or raise num_partitions, and check the entity counts"))
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
