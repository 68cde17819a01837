"""Forecast of a process's peak memory, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import JsonValue


class Line(NamedTuple):
    """Term of a forecast.

    Attributes:
        what: name of the term.
        size: bytes.
        keys: of the config, by which it can be made smaller.
    """

    what: str
    size: int
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Peak of one task's process, in resident bytes.

    Attributes:
        task: name of the task.
        lines: its terms; they are held at the same time.
    """

    task: str
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, task: str, lines: Iterable[Line]) -> Forecast:
        """Make a forecast of the terms that are not zero."""
        return cls(task, tuple(line for line in lines if line.size))

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(line.size for line in self.lines)

    @property
    def keys(self) -> list[str]:
        """Keys by which the peak can be lowered.

        Those of the largest terms come first.
        """
        ordered = sorted(self.lines, key=lambda line: -line.size)
        return list(dict.fromkeys(key for line in ordered for key in line.keys))

    def table(self) -> list[str]:
        """Return the forecast as the lines of a small table."""
        rows = [(line.what, line.size) for line in self.lines] + [(f"peak of {self.task}", self.peak)]
        width = max(len(what) for what, _ in rows)
        return [f"{what:<{width}}  {f'{human_count(size)}B':>8}" for what, size in rows]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the forecast as plain JSON values, in bytes."""
        return {"peak": self.peak, "lines": {line.what: line.size for line in self.lines}}
