"""Training steps side by side, or one other thread alone: the way in for who changes what is being trained."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class StepLock:
    """Lets steps through, any number at a time, and now and then somebody who must be alone.

    Nobody starves: who wants to be alone waits for the steps under way and no other, and the steps held back meanwhile
    go before the next who wants to be alone. A thread that is inside must not enter again.

    Args:
        workers: threads that take steps.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._changed = threading.Condition(threading.Lock())
        self._under_way = 0  # steps
        self._held_back = 0  # steps
        self._wanted = 0  # by how many who want to be alone, or are
        self._alone = False
        self._turn = 0  # rises when steps that were held back go on
        self._waited = 0.0
        self._step = _Step(self._enter, self._leave)

    @property
    def stall(self) -> float:
        """Seconds for which steps were held back until now, as a mean over the workers."""
        return self._waited / self._workers

    def step(self) -> AbstractContextManager[None]:
        """Return a context for one training step; several threads may be in theirs."""
        return self._step

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no step is under way, and hold back new ones until the context ends."""
        with self._changed:
            self._wanted += 1
            while self._under_way or self._alone:
                self._changed.wait()
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._wanted -= 1
                # counted as under way before they wake up, so that nobody is alone again before they went on
                self._under_way += self._held_back
                self._held_back = 0
                self._turn += 1
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            if self._wanted:
                self._wait_for_turn()
            else:
                self._under_way += 1

    def _wait_for_turn(self) -> None:
        started, turn = time.perf_counter(), self._turn
        self._held_back += 1
        while turn == self._turn:
            self._changed.wait()
        self._waited += time.perf_counter() - started

    def _leave(self) -> None:
        with self._changed:
            self._under_way -= 1
            if self._wanted and not self._under_way:
                self._changed.notify_all()


class _Step:
    """The context of every step: one object, because making one would cost more than passing the gate."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()
