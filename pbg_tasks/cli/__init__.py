"""The ``pbg`` command, with one subcommand for each task.

It parses and prints; the work is in ``tasks``. Results go to stdout (one JSON object with ``--json``), progress and
errors to stderr. The exit status is the error's category (``pbg_tasks.errors``). Heavy imports wait until a command
needs them.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from pbg_tasks.advice import with_spec
from pbg_tasks.cli import dags, exchange, info, migrations, models, nightly, releases, transfer, tuning
from pbg_tasks.cli.common import spread_overrides
from pbg_tasks.cli.first_process import end_on_sigterm
from pbg_tasks.cli.guide import GuidedGroup, called, guide
from pbg_tasks.cli.leaving import leave_after
from pbg_tasks.errors import ERROR_FILE, ConfigError, EvictedError, PbgError
from pbg_tasks.memory.address_space import require_addresses
from pbg_tasks.progress import noting_once
from pbg_tasks.redaction import credentials_in, redacted
from pbg_tasks.tasks.foreign_errors import as_pbg_error, foreseen

app = typer.Typer(
    name="pbg",
    help="Embed a large multi-relation graph every night: partition, bucket, train, evaluate, publish.",
    no_args_is_help=True,
    cls=GuidedGroup,
    pretty_exceptions_enable=False,
)
app.add_typer(nightly.app)
app.add_typer(tuning.app)
app.add_typer(releases.app)
app.add_typer(migrations.app)
app.add_typer(models.app)
app.add_typer(info.app)
app.add_typer(dags.app)
app.add_typer(transfer.app)
app.add_typer(exchange.app)
guide(app)


# Bytes of addresses that a command takes at its peak with one CPU, and for each further CPU; measured on a small graph,
# and rounded up. A command that is not listed may load DuckDB, Arrow and torch.
_NOTHING_HEAVY = {"keys", "schema", "config", "dag-file", "dag-files"}
_STORE_ONLY = dict.fromkeys(
    ("show", "info", "releases", "promote", "rollback", "pin", "unpin", "skip", "gc", "tune-select", "tune-finish"),
    300_000_000,
)
_NO_TORCH = dict.fromkeys(
    (
        "plan",
        "tune-start",
        "validate",
        "partition",
        "bucket",
        "prepare",
        "import",
        "preserve",
        "publish",
        "report",
        "verify",
    ),
    750_000_000,
)
_EVERYTHING = 1_100_000_000
_EACH_CPU = 50_000_000
_COLLECTED_EVERY = 200_000
"""New objects after which Python looks for cycles. At its default of 700 it does so hundreds of times while modules are
imported, all of which stay: a tenth of the CPU time of a short command, .4 s of an evaluation.
"""
_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS", "__all__"
"""Pydantic looks for plugins in the metadata of all installed packages: a twentieth of a short command's CPU time."""
_IDLE_BLAS = "OPENBLAS_THREAD_TIMEOUT", "4"
"""NumPy's OpenBLAS has a thread for each CPU but one. They spin for 2^26 cycles when NumPy is imported, and after each
product: 40 ms of CPU time a thread. With this they sleep after 2^4.
"""
_WRONG_USE: type[Any] = next(
    (each for each in typer.BadParameter.__mro__ if each.__name__ == "UsageError"), typer.BadParameter
)
"""Click's error of arguments, or that of Typer's copy of click."""
_OPTION = re.compile(r"--?[a-z][a-z-]*(?=$|=)")


@app.callback(invoke_without_command=True)
def _begin(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    if version:
        from pbg_tasks import __version__

        typer.echo(f"pbg {__version__}")
        raise typer.Exit
    context.with_resource(noting_once())
    command = context.invoked_subcommand
    if command is not None and command not in _NOTHING_HEAVY:
        size = (_STORE_ONLY | _NO_TORCH).get(command, _EVERYTHING)
        require_addresses(f"`pbg {command}`", size + _EACH_CPU * len(os.sched_getaffinity(0)))


def command() -> None:
    """Run the command as all that this process does."""
    leave_after(main)


def main() -> None:
    """Run the command.

    Every failure ends in one line ``error: kind: text`` and the exit status of its kind. For an unforeseen failure,
    which is a bug, the traceback comes before that line.
    """
    if os.getpid() == 1:
        end_on_sigterm()
    if isinstance(sys.stdout, io.TextIOWrapper):
        _take_every_name(sys.stdout)
    gc.set_threshold(_COLLECTED_EVERY)
    gc.enable()
    for setting in (_NO_PLUGINS, _IDLE_BLAS):
        os.environ.setdefault(*setting)
    try:
        _check_arguments(sys.argv[1:])
        called(app, sys.argv[1] if len(sys.argv) > 1 else "")(spread_overrides(sys.argv[1:]))
    except PbgError as error:
        _fail(error)
    except SystemExit as end:
        wrong = end.__context__
        if isinstance(wrong, _WRONG_USE) and type(wrong).__name__ != "NoArgsIsHelpError":  # whose text is a help
            _fail(ConfigError(wrong.format_message()))
        raise
    except Exception as error:  # noqa: BLE001 - by its status, too, a scheduler knows a bug from other failures
        _fail(foreseen(error) or _bug(error))


def _take_every_name(stdout: io.TextIOWrapper) -> None:
    """Let names of any script be printed, whatever the locale.

    Files and pipes get UTF-8, which specs have to be, and a terminal gets escapes for characters that it lacks.
    """
    if stdout.isatty():
        stdout.reconfigure(errors="backslashreplace")
    else:
        stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _check_arguments(arguments: list[str]) -> None:
    """Refuse credentials among the arguments.

    That is done before any argument is shown in a message or stored with a run.

    Raises:
        ConfigError: an argument holds credentials; the message has its position and option, not the argument.
    """
    before = ""
    for number, argument in enumerate(arguments, start=1):
        option = _OPTION.match(argument) or (_OPTION.match(before) if "=" not in before else None)
        if found := credentials_in(argument):
            named = f" ({option[0]})" if option else ""
            raise ConfigError(
                f"argument {number} of pbg{named} holds {found}: write the place alone; credentials come from the "
                "environment, a profile or the Airflow connection"
            )
        before = argument


def _bug(error: Exception) -> PbgError:
    """Print the origin of an error; return a one-line error.

    It is one of this package, and its message is on one line.
    """
    sys.stderr.write(redacted("".join(traceback.format_exception(error))))
    return as_pbg_error(error)


def _fail(error: PbgError) -> None:
    line = f"error: {error.kind}: {with_spec(str(error))}\n"
    sys.stdout.flush()
    sys.stderr.write(line)
    if note := os.environ.get(ERROR_FILE):
        with contextlib.suppress(OSError):  # the line is on stderr, too
            Path(note).write_text(line, encoding="utf-8")
    if isinstance(error, EvictedError):  # reads of other threads must not use up the time of the notice
        sys.stderr.flush()
        os._exit(error.exit_code)
    sys.exit(error.exit_code)
