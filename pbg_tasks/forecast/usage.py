"""Usage of a task: everything that costs time or money."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from pbg_tasks.config.results import TrainResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config.results import TaskResult


def is_of_last_try(result: TaskResult) -> bool:
    """Return whether a task's result counts only its last attempt.

    That is so for a training that resumed an earlier one.
    """
    return isinstance(result, TrainResult) and result.resumed_from is not None


class Usage(NamedTuple):
    """Usage of one task.

    Attributes:
        seconds: by the clock.
        cpu_seconds: of its process, all threads together; other users of the machine hardly change it.
        memory_bytes: peak of its process.
        store_bytes_read: from the graph's store.
        store_bytes_written: to it.
    """

    seconds: float
    cpu_seconds: float
    memory_bytes: float
    store_bytes_read: float
    store_bytes_written: float

    @classmethod
    def at_once(cls, parts: Sequence[Self]) -> Self:
        """Return the usage of parts that run at once.

        Time and memory are those of the largest part, all else is a sum.
        """
        seconds, cpu_seconds, memory, read, written = zip(*parts, strict=True)
        return cls(max(seconds), sum(cpu_seconds), max(memory), sum(read), sum(written))

    @classmethod
    def of_result(cls, result: TaskResult) -> Self | None:
        """Return the usage in a task's result; None without it."""
        if result.usage is None:
            return None
        return cls(result.seconds, *(getattr(result.usage, field) for field in cls._fields[1:]))
