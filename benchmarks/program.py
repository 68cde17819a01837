"""Start of the programs of benchmarks and tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from pbg_tasks.errors import PbgError

if TYPE_CHECKING:
    from collections.abc import Callable


def run(main: Callable[..., None]) -> None:
    """Run a function as a command, with errors in one line."""
    try:
        typer.run(main)
    except PbgError as error:
        sys.exit(f"error: {error.kind}: {error}")
