"""A writer that performs one store operation at a time, on demand.

It stands still before the next, and may be killed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.storage import Store


_HANGS_SECONDS = 60.0


class Killed(BaseException):
    """The process died."""


class PausedWriter:
    """A thread that works on a store, one operation at a time.

    Args:
        store: that it works on.
        work: called with that store.

    Attributes:
        next: the operation it waits before; None when it has ended.
        error: that ended it; None when it finished its work.
    """

    def __init__(self, store: Store, work: Callable[[Store], None]) -> None:
        self.next: str | None = None
        self.error: BaseException | None = None
        self._turn, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._dead = False
        self._thread = threading.Thread(target=self._run, args=(work, _PausedStore(store, self)), daemon=True)
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Let it do its next operation and wait until it pauses again."""
        if self.next is None:
            raise RuntimeError("the writer has ended") from self.error
        self._turn.release()
        self._wait()

    def kill(self) -> None:
        """End it without any further operation, even those of a clean end."""
        self._dead = True
        if self.next is not None:
            self.step()
        self._thread.join()

    def pause(self, operation: str) -> None:
        """Wait before an operation; the heartbeat in its own thread goes on.

        It does not wait before a listing either: some listings are inside a ``cached_property``, which has one lock for
        all in Python 3.11.
        """
        if threading.current_thread() is not self._thread or operation == "list":
            return
        if not self._dead:
            self.next = operation
            self._stands.release()
            self._turn.acquire()
        if self._dead:
            raise Killed

    def _wait(self) -> None:
        if not self._stands.acquire(timeout=_HANGS_SECONDS):
            raise RuntimeError(f"a writer hangs after {self.next}")

    def _run(self, work: Callable[[Store], None], store: Store) -> None:
        try:
            work(store)
        except BaseException as error:  # noqa: BLE001 - the test that let it go on looks at it
            self.error = error
        self.next = None
        self._stands.release()


class _PausedStore:
    """Store whose operations wait until the writer may go on."""

    def __init__(self, store: Store, writer: PausedWriter) -> None:
        self._store, self._writer = store, writer

    @property
    def url(self) -> str:
        return self._store.url

    def __getattr__(self, name: str) -> Callable[..., object]:
        operation = getattr(self._store, name)

        def paused(*arguments: object, **options: object) -> object:
            self._writer.pause(name)
            return operation(*arguments, **options)

        return paused
