"""Stores of the shared parameters behind the training.

They are made one after another, in a thread for which no rank waits.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pbg_tasks.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.checkpoint import StoredObject

_SPACING = 10.0  # factor of the last store's duration before the next begins


class SharedStores:
    """Repeated stores of the shared parameters; all threads may call it.

    Args:
        store: called with a number that rises; returns the stored objects by PBG's file name.
        on_stored: called with the stored objects, in the thread that stores.
        every: least number of seconds between two stores; 0: only ``now`` stores.

    Attributes:
        every: the argument.
    """

    def __init__(
        self,
        store: Callable[[int], dict[str, StoredObject]],
        on_stored: Callable[[dict[str, StoredObject]], None],
        *,
        every: float,
    ) -> None:
        self.every = every
        self._store, self._on_stored = store, on_stored
        self._changed = threading.Condition()
        self._busy = self._again = False
        self._resting = True
        self._due = float("-inf")
        self._number = 0
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing more is stored; ``check`` raises the reason."""
        return self._error is not None

    def begin(self) -> None:
        """Allow stores by the clock from now on."""
        with self._changed:
            self._resting = False

    def ask(self) -> None:
        """Begin a store, if one is due and none is under way."""
        with self._changed:
            idle = not (self._busy or self._resting or self.failed)
            if self.every and idle and time.monotonic() >= self._due:
                self._start()

    def insist(self) -> None:
        """Begin a store as soon as possible, also after an error.

        A store under way is finished first. The error may have passed.

        After ``now``, and before ``begin``, there is nothing to store.
        """
        with self._changed:
            if self._resting:
                return
            if isinstance(self._error, StorageError):
                self._error = None
            if self._busy:
                self._again = True
            elif self.every:
                self._start()

    def now(self) -> dict[str, StoredObject]:
        """Store in this thread, after a store under way has ended.

        No further store begins until ``begin``.

        Raises:
            PbgError: the reason why nothing can be stored.
        """
        with self._changed:
            self._resting, self._again = True, False
            self._changed.wait_for(lambda: not self._busy)
            self.check()
            self._busy = True
        try:
            return self._stored()
        finally:
            with self._changed:
                self._busy = self._again = False
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for a store under way, for a limited time.

        Returns:
            Whether no store is under way.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, seconds)

    def check(self) -> None:
        """Raise the error that ended the stores, if there is one."""
        if self._error is not None:
            raise self._error

    def _start(self) -> None:
        self._busy = True
        threading.Thread(target=self._work, name="shared parameters", daemon=True).start()

    def _stored(self) -> dict[str, StoredObject]:
        """Store; called by the one thread that is busy."""
        self._number += 1
        started = time.monotonic()
        stored = self._store(self._number)
        ended = time.monotonic()
        self._due = ended + max(self.every, _SPACING * (ended - started))
        return stored

    # The methods below run in the thread that stores.

    def _work(self) -> None:
        try:
            while True:
                self._on_stored(self._stored())
                with self._changed:
                    self._busy, self._again = self._again, False
                    self._changed.notify_all()
                    if not self._busy:
                        return
        except BaseException as error:  # noqa: BLE001 - raised again at the next request
            with self._changed:
                self._error, self._busy = error, False
                self._changed.notify_all()
