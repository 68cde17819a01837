"""Partitions that have to be stored, and the time to begin.

The module has no clock, thread or I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.training.data.partitions import PartitionKey

_FORGET = 0.9  # factor of a slow write's duration for each later write that was faster


class Backlog:
    """Partitions that are newer than their stored objects, oldest first.

    They are stored one after another.

    Storing begins as late as possible, because a partition that is replaced meanwhile need not be stored at all; and so
    early that each begins within ``interval`` of its first change, if the store is as fast as lately.

    Args:
        interval: seconds.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._since: dict[PartitionKey, float] = {}  # time of the first change, in this order
        self._writing: tuple[float, float] | None = None  # time of its first change, and time at which storing it began
        self._write_seconds: float | None = None  # not measured yet

    def __len__(self) -> int:
        """Return the number of partitions not stored.

        It includes the one that is being stored.
        """
        return len(self._since) + (self._writing is not None)

    def add(self, key: PartitionKey, now: float) -> None:
        """Record that a partition has changed."""
        self._since.setdefault(key, now)

    def begin_at(self) -> float | None:
        """Return the time at which to store the oldest; None for none."""
        seconds = self._interval if self._write_seconds is None else self._write_seconds
        return min(
            (since + self._interval - before * seconds for before, since in enumerate(self._since.values())),
            default=None,
        )

    def begin(self, now: float) -> PartitionKey:
        """Take the oldest partition.

        Its later changes count as a new entry.
        """
        key = next(iter(self._since))
        self._writing = (self._since.pop(key), now)
        return key

    def end(self, now: float) -> None:
        """Record that the taken partition is stored."""
        if self._writing is not None:
            self._write_seconds = max(now - self._writing[1], _FORGET * (self._write_seconds or 0.0))
            self._writing = None

    def age(self, now: float) -> float:
        """Return the age in seconds of the oldest change; 0 for none."""
        oldest = [*list(self._since.values())[:1], *(self._writing or ())[:1]]
        return now - min(oldest, default=now)
