"""Mark of a run that a release or an export was announced.

A scheduler stores the mark after it has announced, so that it announces once. A scheduler that is killed in between
announces again, so that no subscriber misses a release.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.progress import say
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from pbg_tasks.storage import Store


class Announced(TypedDict):
    """A task of a run whose announcement is remembered."""

    run: str
    announced: str


def announced(url: str, task: str) -> Announced:
    """Record that the result of a run's task was announced.

    Args:
        url: of the run.
        task: ``publish``, ``promote``, or ``export-`` and the name of an export.

    Raises:
        ConfigError: the run has no such task.
        ConflictError: the run is being removed.
    """
    run = RunContext.open(url)
    tasks = ["publish", "promote", *(export.task for export in run.spec.graph.exports)]
    if task not in tasks:
        raise ConfigError(f"{run.url}: announces no {task!r}, only {', '.join(tasks)}")
    hold(run.store, run.run_id)
    with suppress(ConflictError):
        run.store.put_new(_key(run.run_id, task), b"{}")
    say(f"announced: {task} of run {run.run_id}")
    return {"run": run.url, "announced": task}


def is_announced(store: Store, run_id: str, task: str) -> bool:
    """Whether the result of a run's task was announced."""
    return store.head(_key(run_id, task)) is not None


def _key(run_id: str, task: str) -> str:
    return f"runs/{run_id}/announced/{task}.json"
