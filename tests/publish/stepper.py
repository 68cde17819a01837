"""Processes that share a store and advance at a test's command only.

Each goes from one store call to the next.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConflictError
from tests.publish.turned_store import TurnedStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SECONDS = 60.0
"""Longest wait in seconds for a process to come to its next call."""


class HashTaggedStore(TurnedStore):
    """A ``TurnedStore`` whose tags are hashes of the bytes.

    As in S3, equal bytes have equal tags.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._tags: dict[str, str] = {}

    def _dated(self, info):
        return replace(super()._dated(info), tag=self._tags[info.key])

    def _date(self, info):
        self._tags[info.key] = hashlib.md5(self._store.get(info.key).data).hexdigest()
        return self._dated(super()._date(info))

    def swap(self, key, source, *, expected, metadata=None):
        there = self._store.head(key)
        if (there and self._tags[key]) != (expected and expected.tag):
            raise ConflictError(f"{key}: another writer was first")
        return self._date(self._store.swap(key, source, expected=there, metadata=metadata))


class Over(BaseException):
    """The test has ended, and its processes end with it."""


class Process:
    """One thread that stops before each call to its store.

    Args:
        store: shared by all processes.
        work: called with a store; its error is kept.

    Attributes:
        coming: method and key or prefix of the call it waits before; None once it has ended.
        error: that ended it, if one did.
        data: the bytes that the coming call writes; empty where it writes none.
    """

    def __init__(self, store: TurnedStore, work: Callable[[Paced], object]) -> None:
        self.coming: tuple[str, str] | None = None
        self.error: BaseException | None = None
        self.data = b""
        self._over = False
        self._turn, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._work, self._store = work, Paced(store, self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._await()

    def step(self) -> None:
        """Let it make the call it waits before, then wait again."""
        self._turn.release()
        self._await()

    def finish(self) -> None:
        """Let it run to its end."""
        while self.coming is not None:
            self.step()

    def kill(self) -> None:
        """Let no further call happen."""
        self._over = True
        while self.coming is not None:
            self.step()
        self._thread.join(_SECONDS)

    def pause(self, method: str, key: str, data: object) -> None:
        """Wait in the process's own thread until a call is permitted."""
        self.coming, self.data = (method, key), data if isinstance(data, bytes) else b""
        self._paused.release()
        self._turn.acquire()
        if self._over:
            raise Over

    def _run(self) -> None:
        try:
            self._work(self._store)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.coming = None
            self._paused.release()

    def _await(self) -> None:
        assert self._paused.acquire(timeout=_SECONDS), "a process hangs"


class Paced:
    """A process's view of the store."""

    def __init__(self, store: TurnedStore, process: Process) -> None:
        self._shared, self._process = store, process

    def __getattr__(self, name: str) -> object:
        found = getattr(self._shared, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            self._process.pause(name, arguments[0] if arguments else "", arguments[1] if len(arguments) > 1 else b"")
            return found(*arguments, **options)

        return call


def one_by_one(work, items, threads):
    """Stand in for ``in_parallel`` with one call at a time."""
    return [work(item) for item in items]
