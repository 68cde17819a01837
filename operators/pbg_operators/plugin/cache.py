"""Cache of answers, for the many readers of one page.

The store is read once for all of them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """At most ``capacity`` values, each made once for simultaneous requests.

    Args:
        capacity: beyond it, the value that was requested longest ago is removed.
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
            make: makes it; its errors are raised here, and then no value is kept or removed.
            keep: number of seconds for which a value stays fresh.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if not entry.values or entry.until < self._clock():
                try:
                    entry.values = [make()]
                except BaseException:
                    self._forget(key, entry)
                    raise
                entry.until = self._clock() + keep(entry.values[0])
                self._make_room()
            return entry.values[0]

    def _forget(self, key: Hashable, entry: _Entry[Value]) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _make_room(self) -> None:
        with self._lock:
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)


class _Entry(Generic[Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[Value] = []
        self.until = 0.0
