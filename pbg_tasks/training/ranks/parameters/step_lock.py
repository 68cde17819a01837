"""Lock between training steps, which run side by side, and other changes.

A thread that changes what is being trained holds it alone.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class StepLock:
    """Lock that steps share, and one other thread holds alone.

    No thread starves: a thread that wants to be alone waits for the steps under way only, and the steps held back
    meanwhile go before the next thread that wants to be alone. A thread that is inside must not enter again.

    Args:
        workers: number of threads that take steps.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._changed = threading.Condition(threading.Lock())
        self._under_way = 0  # steps
        self._held_back = 0  # steps
        self._wanted = 0  # number of threads that are alone or want to be
        self._alone = False
        self._turn = 0  # rises when steps that were held back continue
        self._waited = 0.0
        self._step = _Step(self._enter, self._leave)

    @property
    def stall(self) -> float:
        """Mean seconds over the workers for which steps were held back."""
        return self._waited / self._workers

    def step(self) -> AbstractContextManager[None]:
        """Return a context for one training step, which threads share."""
        return self._step

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the steps under way, and hold back new ones meanwhile."""
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
                # counted as under way before they wake up, so that no thread is alone again before they continued
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
    """Context of every step.

    It is one object, because making one would cost more than passing the lock.
    """

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()
