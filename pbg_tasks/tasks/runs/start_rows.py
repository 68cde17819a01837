"""Start rows of a run's new entities, as its training stored them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import VerifiedFiles
from pbg_tasks.config import RunLayout
from pbg_tasks.tasks.files import open_directory

if TYPE_CHECKING:
    from pbg_tasks.tasks.context import RunContext


def open_start(run: RunContext) -> VerifiedFiles:
    """Open the start rows of new entities.

    Raises:
        ConfigError: they have not been computed, or there are none.
    """
    files = open_directory(run, RunLayout.start)
    folder = next(iter(files.records)).partition("/")[0]
    records = {name.removeprefix(f"{folder}/"): record for name, record in files.records.items()}
    return VerifiedFiles(run.store, f"{files.prefix}/{folder}", 0, records)
