"""What all ranks share is stored behind their training: one store after another, in a thread that nobody waits for."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pbg_tasks.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.checkpoint import StoredObject

_SPACING = 10.0  # times as long as the last store took, until the next begins


class SharedStores:
    """Stores it now and then; all threads may call it.

    Args:
        store: called with a number that rises; returns what it stored by PBG's file name.
        tell: told what was stored, in the thread that stores.
        every: seconds between two stores, at least; 0: only ``now`` stores.

    Attributes:
        every: as given.
    """

    def __init__(
        self,
        store: Callable[[int], dict[str, StoredObject]],
        tell: Callable[[dict[str, StoredObject]], None],
        *,
        every: float,
    ) -> None:
        self.every = every
        self._store, self._tell = store, tell
        self._changed = threading.Condition()
        self._busy = self._again = False
        self._resting = True
        self._due = float("-inf")
        self._number = 0
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing more is stored, for a reason that ``check`` raises."""
        return self._error is not None

    def begin(self) -> None:
        """Let it be stored by itself from now on."""
        with self._changed:
            self._resting = False

    def ask(self) -> None:
        """Begin to store, if it is time to and nothing is being stored."""
        with self._changed:
            idle = not (self._busy or self._resting or self.failed)
            if self.every and idle and time.monotonic() >= self._due:
                self._start()

    def insist(self) -> None:
        """Begin to store, as soon as what is being stored is; also when the store had failed, which may be over.

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
        """Store here, once what is being stored is, and nothing more by itself until ``begin``.

        Raises:
            PbgError: why nothing can be stored.
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
        """Tell whether nothing is being stored any more, after so many seconds at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, seconds)

    def check(self) -> None:
        """Raise why nothing more is stored, if so."""
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

    # What follows runs in the thread that stores.

    def _work(self) -> None:
        try:
            while True:
                self._tell(self._stored())
                with self._changed:
                    self._busy, self._again = self._again, False
                    self._changed.notify_all()
                    if not self._busy:
                        return
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks the coordinator next
            with self._changed:
                self._error, self._busy = error, False
                self._changed.notify_all()
