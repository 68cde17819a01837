"""Rows of a run's snapshot as the first task staged them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.snapshot import STAGED, open_staged
from pbg_tasks.storage.metered import count_read
from pbg_tasks.tasks.files import open_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config import SnapshotFile
    from pbg_tasks.tasks.context import RunContext


def staged_snapshot(run: RunContext, directory: Path) -> Sequence[SnapshotFile]:
    """Download staged rows, and return what stands for the files.

    An earlier version's ``validate`` staged nothing: then the files themselves are returned.

    Args:
        run: validated.
        directory: local one.

    Raises:
        ConfigError: the run is not validated yet.
        FormatError: what was staged is damaged.
    """
    files = open_directory(run, RunLayout.snapshot)
    if not present_files(STAGED, files.names):
        count_snapshot_bytes(run)
        return run.spec.files
    return open_staged(run.spec.files, files.fetch_table(STAGED, directory))


def count_snapshot_bytes(run: RunContext) -> None:
    """Count the files of a snapshot among the bytes read.

    A task does not read them through the store.
    """
    count_read(run.store, sum(file.size for file in run.spec.files))
