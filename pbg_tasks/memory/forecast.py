"""A forecast: what a process will hold in memory at its worst moment, one line a thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Iterable


class Line(NamedTuple):
    """One term.

    Attributes:
        what: it is.
        size: bytes.
        keys: of the config, by which it can be made smaller.
    """

    what: str
    size: int
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The peak of one task's process, resident bytes.

    Attributes:
        task: whose.
        lines: its terms; they are held at the same time.
    """

    task: str
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, task: str, lines: Iterable[Line]) -> Forecast:
        """Collect the terms that are there at all."""
        return cls(task, tuple(line for line in lines if line.size))

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        return sum(line.size for line in self.lines)

    @property
    def keys(self) -> list[str]:
        """The keys by which the peak can be lowered, those of the largest terms first."""
        ordered = sorted(self.lines, key=lambda line: -line.size)
        return list(dict.fromkeys(key for line in ordered for key in line.keys))

    def table(self) -> list[str]:
        """Return the lines of a small table."""
        rows = [(line.what, line.size) for line in self.lines] + [(f"peak of {self.task}", self.peak)]
        width = max(len(what) for what, _ in rows)
        return [f"{what:<{width}}  {f'{human_count(size)}B':>8}" for what, size in rows]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, in bytes."""
        return {"peak": self.peak, "lines": {line.what: line.size for line in self.lines}}
