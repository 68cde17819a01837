"""DuckDB, out of core: within a memory budget, spilling to scratch, with no extension fetched from anywhere."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from pbg_tasks.errors import ResourceError
from pbg_tasks.progress import human_seconds, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.config import Resources


@contextmanager
def connect(resources: Resources, scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in ``scratch`` that keeps within ``resources.memory_gb``.

    Raises:
        ResourceError: a query needs more memory or disk than there is.
    """
    connection = duckdb.connect(
        scratch / "prepare.duckdb",
        config={
            "memory_limit": f"{resources.memory_gb}GB",
            "temp_directory": str(scratch / "spill"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            **({"threads": str(resources.threads)} if resources.threads else {}),
        },
    )
    try:
        yield connection
    except duckdb.OutOfMemoryException as error:
        raise ResourceError(
            f"preparation needs more than resources.memory_gb = {resources.memory_gb} or more room in {scratch}: "
            f"{_first_line(error)}"
        ) from None
    except duckdb.IOException as error:
        if "No space left" not in str(error):
            raise
        raise ResourceError(f"no room left in {scratch}; set PBG_SCRATCH to a larger disk") from None
    finally:
        connection.close()


@contextmanager
def phase(connection: duckdb.DuckDBPyConnection, what: str, *, interval: float = 5.0) -> Iterator[None]:
    """Say how far the queries inside are, every ``interval`` seconds, and how long they took."""
    started, stop = time.monotonic(), threading.Event()

    def watch() -> None:
        while not stop.wait(interval):
            share = connection.query_progress() / 100
            seconds = time.monotonic() - started
            eta = f", ETA {human_seconds(seconds / share * (1 - share))}" if 0 < share < 1 else ""
            say(f"{what}: {human_seconds(seconds)}, {max(share, 0):.0%} of the query{eta}")

    thread = threading.Thread(target=watch, name=what, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    say(f"{what}: done in {human_seconds(time.monotonic() - started)}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
