"""What one task takes of everything that costs something."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from pbg_tasks.config.results import TrainResult

if TYPE_CHECKING:
    from pbg_tasks.config.results import TaskResult


def is_of_last_try(result: TaskResult) -> bool:
    """Whether a task's result says what its last try took only: a training that went on where an earlier one ended."""
    return isinstance(result, TrainResult) and result.resumed_from is not None


class Usage(NamedTuple):
    """Of one task.

    Attributes:
        seconds: by the clock.
        cpu_seconds: of its process, all threads together: what neighbours on the machine hardly change.
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
    def of_result(cls, result: TaskResult) -> Self | None:
        """Return what a task's result says it took; None of a result that does not say."""
        if result.usage is None:
            return None
        return cls(result.seconds, *(getattr(result.usage, field) for field in cls._fields[1:]))
