"""Failure of a task, as it is stored in the run.

That of ``plan``, which has no run yet, is stored by its snapshot. It is for people alone: no task decides anything by
it. So it never makes a task fail, and a damaged one, or one of a later version, is as good as none. A process that was
killed leaves none.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.names import is_part_of
from pbg_tasks.config.results import PlanResult
from pbg_tasks.errors import AccessError, FormatError, NotFoundError, OutOfTurnError, PbgError, QualityGateError
from pbg_tasks.progress import say
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.foreign_errors import as_pbg_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.publish import Channel
    from pbg_tasks.report.documents import Failed
    from pbg_tasks.storage import Blob, Store

NAME = "failed.json"
"""Name of the document below its run."""
PATIENCE_SECONDS = 15.0
"""Time after which a task ends with its error although the store has not taken the document."""

_AT_ONCE = 16


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

    def told(self) -> Failed:
        """Return the part that pages and ``show`` have of it."""
        return {"task": self.task, "kind": self.kind, "reason": self.reason, "at": self.at.isoformat()}


def failure_key(run: str) -> str:
    """Return the key of a run's failure."""
    return f"runs/{run}/{NAME}"


def store_failure(store: Store, run: str, task: str, error: BaseException) -> None:
    """Store the error with which a task of a run ends.

    A store that fails, refuses or does not answer is reported only: the task ends with its own error.
    """
    _store(store, failure_key(run), task, error)


@contextmanager
def keeping_plan_failure(channel: Channel, graph: str, snapshot: str) -> Iterator[None]:
    """Store the error of a plan; remove it after a success.

    A plan that has to wait has not failed, and one whose night is refused has made its run: the channel has the reason.
    A store that refuses is reported only, because pages and ``show`` alone read the error.
    """
    store, key = channel.store, f"{_unplanned(channel.name)}{graph}/{snapshot}.json"
    try:
        yield
    except OutOfTurnError:
        raise
    except QualityGateError:
        _take_back(store, key)
        raise
    except Exception as error:
        _store(store, key, PlanResult.TASK, error)
        raise
    _take_back(store, key)


def _take_back(store: Store, key: str) -> None:
    """Remove the error of an earlier plan."""
    try:
        if store.head(key) is not None:
            store.delete(key)
    except PbgError as error:
        say(f"warning: {store.url}/{key} was not removed, so pages and `pbg show` still have it: {error}")


def plan_failures(store: Store, channel: str) -> dict[tuple[str, str], Failure]:
    """Return the errors of plans, by graph and snapshot."""
    prefix, found = _unplanned(channel), {}
    keys = [info.key for info in store.list(prefix)]
    for key, there in zip(keys, in_parallel(lambda key: _read(store, key), keys, _AT_ONCE), strict=True):
        graph, _, name = key.removeprefix(prefix).partition("/")
        if there is not None:
            found[graph, name.removesuffix(".json")] = there[0]
    return found


def _unplanned(channel: str) -> str:
    return f"channels/{channel}/unplanned/"


def _store(store: Store, key: str, task: str, error: BaseException) -> None:
    meaning = as_pbg_error(error)
    found = Failure(task=task, kind=meaning.kind, reason=str(meaning), at=datetime.now(UTC))
    writer = Thread(target=_put, args=(store, key, found), daemon=True)  # its process does not wait for it at its end
    try:
        writer.start()
        writer.join(PATIENCE_SECONDS)
    except RuntimeError as lack:  # no room for a thread, of which the task may have ended, too
        _warn(found, lack)


def begin_again(store: Store, run: str, task: str) -> None:
    """Take back the failure of a task that is tried again."""
    there = read_failure(store, run)
    if there is not None and not there[0].begun_again and _covers(task, there[0].task):
        _put(store, failure_key(run), there[0].model_copy(update={"begun_again": True}))


def read_failure(store: Store, run: str) -> tuple[Failure, Blob] | None:
    """Return the failure that is stored in a run, with its object.

    None also for roles without permission to read it, as those of an earlier version have none.
    """
    return _read(store, failure_key(run))


def _read(store: Store, key: str) -> tuple[Failure, Blob] | None:
    try:
        there = store.get(key)
        return decode(Failure, there.data, source=f"{store.url}/{key}"), there
    except (AccessError, FormatError, NotFoundError):
        return None


def _put(store: Store, key: str, found: Failure) -> None:
    try:
        store.put(key, encode(found))
    except Exception as error:  # noqa: BLE001 - the task's own error counts
        _warn(found, error)


def _warn(found: Failure, error: Exception) -> None:
    say(f"warning: the failure of {found.task} was not stored for pages and `pbg show`: {as_pbg_error(error)}")


def _covers(task: str, failed: str) -> bool:
    """Return whether a task does what a failed one did not.

    A task that merges parts does so for all of them.
    """
    return failed in {task, f"{task}-releases"} or is_part_of(task, failed)
