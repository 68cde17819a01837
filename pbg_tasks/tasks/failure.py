"""Failure of a task, as it is stored in the run.

It is for people alone: no task decides anything by it. So it never makes a task fail, and a damaged one, or one of a
later version, is as good as none. A process that was killed leaves none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.names import is_part_of
from pbg_tasks.errors import AccessError, FormatError, NotFoundError
from pbg_tasks.progress import say
from pbg_tasks.tasks.foreign_errors import as_pbg_error

if TYPE_CHECKING:
    from pbg_tasks.storage import Blob, Store

NAME = "failed.json"
"""Name of the document below its run."""
PATIENCE_SECONDS = 15.0
"""Time after which a task ends with its error although the store has not taken the document."""


class Failure(Frozen):
    """Error with which the last task ended that failed.

    Attributes:
        task: its name, also that of a part.
        kind: of the error (``pbg_tasks.errors``).
        reason: the error's line, without credentials.
        at: when, UTC.
        begun_again: whether the task was tried again since.
    """

    format: Literal[1] = 1
    task: str
    kind: str
    reason: str
    at: datetime
    begun_again: bool = False


def failure_key(run: str) -> str:
    """Return the key of a run's failure."""
    return f"runs/{run}/{NAME}"


def store_failure(store: Store, run: str, task: str, error: BaseException) -> None:
    """Store the error with which a task of a run ends.

    A store that fails, refuses or does not answer is reported only: the task ends with its own error.
    """
    meaning = as_pbg_error(error)
    found = Failure(task=task, kind=meaning.kind, reason=str(meaning), at=datetime.now(UTC))
    writer = Thread(target=_put, args=(store, run, found), daemon=True)  # its process does not wait for it at its end
    try:
        writer.start()
        writer.join(PATIENCE_SECONDS)
    except RuntimeError as lack:  # no room for a thread, of which the task may have ended, too
        _warn(found, lack)


def begin_again(store: Store, run: str, task: str) -> None:
    """Take back the failure of a task that is tried again."""
    there = read_failure(store, run)
    if there is not None and not there[0].begun_again and _covers(task, there[0].task):
        _put(store, run, there[0].model_copy(update={"begun_again": True}))


def read_failure(store: Store, run: str) -> tuple[Failure, Blob] | None:
    """Return the failure that is stored in a run, with its object.

    None also for roles without permission to read it, as those of an earlier version have none.
    """
    key = failure_key(run)
    try:
        there = store.get(key)
        return decode(Failure, there.data, source=f"{store.url}/{key}"), there
    except (AccessError, FormatError, NotFoundError):
        return None


def _put(store: Store, run: str, found: Failure) -> None:
    try:
        store.put(failure_key(run), encode(found))
    except Exception as error:  # noqa: BLE001 - the task's own error counts
        _warn(found, error)


def _warn(found: Failure, error: Exception) -> None:
    say(f"warning: the failure of {found.task} was not stored for pages and `pbg show`: {as_pbg_error(error)}")


def _covers(task: str, failed: str) -> bool:
    """Return whether a task does what a failed one did not.

    A task that merges parts does so for all of them.
    """
    return failed in {task, f"{task}-releases"} or is_part_of(task, failed)
