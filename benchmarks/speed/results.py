"""``latest.json``: every measurement, the source of ``docs/performance.md``.

It is a list with one object a measurement, and every number of the document comes from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from benchmarks.speed.environment import counts_here
from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.speed.measurement import Measurement

Entry = dict[str, Any]
_REQUIRED = ("name", "ours", "theirs", "unit", "ratio_min", "ratio_median", "ratio_max", "rerun", "benchmark")


@dataclass(slots=True)
class Results:
    """All entries, those of one benchmark together.

    Attributes:
        entries: in the order they were first measured.
    """

    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read earlier measurements; none when there is no file.

        Raises:
            FormatError: the file holds something else.
        """
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise FormatError(f"{path}: is no JSON ({error}); remove it to start over") from None
        listed = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        if not listed or any(name not in entry for entry in entries for name in _REQUIRED):
            raise FormatError(f"{path}: is no list of measurements; remove it to start over")
        return cls(entries)

    def write(self, path: Path) -> None:
        """Write all entries, replacing the file at once."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.part")
        partial.write_text(json.dumps(self.entries, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def has(self, benchmark: str, revision: str | None, here: Mapping[str, str | int | float]) -> bool:
        """Return whether a benchmark was run on this code here.

        The machine of its run was like ``here``, and had little else to do.
        """
        return revision is not None and any(
            entry.get("revision") == revision and counts_here(entry.get("environment", {}), here)
            for entry in self.of(benchmark)
        )

    def has_longer(self, benchmark: str) -> bool:
        """Return whether a benchmark was run that is not of ``--quick``."""
        return any(not entry["rerun"].startswith("make bench-quick") for entry in self.of(benchmark))

    def of(self, benchmark: str) -> list[Entry]:
        """Return the entries of one benchmark."""
        return [entry for entry in self.entries if entry["benchmark"] == benchmark]

    def replace(self, benchmark: str, measurements: Sequence[Measurement], **common: object) -> None:
        """Put measurements in the place of a benchmark's older ones.

        Args:
            benchmark: its name.
            measurements: all of it.
            **common: further fields of every entry.
        """
        found = [measurement.to_json() | {"benchmark": benchmark, **common} for measurement in measurements]
        place = next((at for at, entry in enumerate(self.entries) if entry["benchmark"] == benchmark), None)
        rest = [entry for entry in self.entries if entry["benchmark"] != benchmark]
        place = len(rest) if place is None else place
        self.entries = [*rest[:place], *found, *rest[place:]]
