"""Commands of tasks, run in the process of the test."""

from __future__ import annotations

from typer.testing import CliRunner

from pbg_operators.task import parse_result
from pbg_tasks.cli import app


def run_here(self, environment, command, arguments):
    """Run a command in this process, which saves most of the time."""
    done = CliRunner().invoke(app, [command, *arguments, "--json"], env=environment)
    if done.exception is not None:
        raise done.exception
    return parse_result(command, done.stdout)
