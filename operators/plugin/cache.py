"""Answers that are kept for a while, so that many who look at one page read the store once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """At most ``capacity`` values, each made once for all who ask for it at a time.

    Args:
        capacity: beyond it, the one that was asked for longest ago goes.
        clock: monotonic seconds.
    """

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity, self._clock = capacity, clock
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value], keep: Callable[[Value], float]) -> Value:
        """Return a value that is fresh, or make it.

        Args:
            key: of the value.
            make: makes it; what it raises is raised here, and nothing is kept.
            keep: for how many seconds a value stays fresh.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        with entry.lock:
            if not entry.values or entry.until < self._clock():
                entry.values = [make()]
                entry.until = self._clock() + keep(entry.values[0])
            return entry.values[0]


class _Entry(Generic[Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[Value] = []
        self.until = 0.0
