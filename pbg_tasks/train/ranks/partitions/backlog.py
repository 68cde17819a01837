"""Which partitions still have to be stored, and when to begin: no clock, no thread, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.train.data.partitions import PartitionKey

_FORGET = 0.9  # of a slow write's duration, with each write since that was faster


class Backlog:
    """Partitions that are newer than what is stored of them, oldest first; they are stored one after another.

    Storing begins as late as it can, because what is replaced meanwhile need not be stored at all; and so early that
    each begins within ``interval`` of its first change, if the store takes them as fast as it did lately.

    Args:
        interval: seconds.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._since: dict[PartitionKey, float] = {}  # in this order
        self._writing: tuple[float, float] | None = None  # since when it waits to be stored, when that began
        self._write_seconds: float | None = None  # not measured yet

    def __len__(self) -> int:
        """Return how many are not stored, with that which is being stored."""
        return len(self._since) + (self._writing is not None)

    def add(self, key: PartitionKey, now: float) -> None:
        """Note that a partition has changed."""
        self._since.setdefault(key, now)

    def begin_at(self) -> float | None:
        """Return the time at which to begin with the oldest; None when there is nothing to store."""
        seconds = self._interval if self._write_seconds is None else self._write_seconds
        return min(
            (since + self._interval - before * seconds for before, since in enumerate(self._since.values())),
            default=None,
        )

    def begin(self, now: float) -> PartitionKey:
        """Take the oldest; what changes of it from now on is the next one's."""
        key = next(iter(self._since))
        self._writing = (self._since.pop(key), now)
        return key

    def end(self, now: float) -> None:
        """Note that what was taken is stored."""
        if self._writing is not None:
            self._write_seconds = max(now - self._writing[1], _FORGET * (self._write_seconds or 0.0))
            self._writing = None

    def age(self, now: float) -> float:
        """Return for how many seconds the oldest change has not been stored; 0 when all are."""
        oldest = [*list(self._since.values())[:1], *(self._writing or ())[:1]]
        return now - min(oldest, default=now)
