"""Watermark of a watch of snapshots.

It stands apart from what reads snapshots: DAG files import it, and must not load a storage library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypedDict

from pbg_tasks.config.nights import snapshot_order

if TYPE_CHECKING:
    from collections.abc import Iterable

REMEMBERED = 500
"""So many announced snapshots are known by name; what is older than all of them is never announced."""


class WatermarkDocument(TypedDict):
    """A watermark as Airflow keeps it."""

    begin: str
    announced: list[str]


@dataclass(frozen=True, slots=True)
class Watermark:
    """Progress of a watch.

    Attributes:
        begin: the first snapshot that counts.
        announced: the snapshots from there on that were announced. They are remembered one by one, so that a
            snapshot that comes late, after newer ones, is not missed.
    """

    begin: str
    announced: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, value: WatermarkDocument) -> Self:
        """Read what ``to_json`` wrote."""
        return cls(value["begin"], frozenset(value["announced"]))

    def to_json(self) -> WatermarkDocument:
        """Return plain JSON values."""
        return {"begin": self.begin, "announced": sorted(self.announced, key=snapshot_order)}

    def awaits(self, key: str) -> bool:
        """Whether a snapshot is still to be announced."""
        return key not in self.announced and snapshot_order(key) >= snapshot_order(self.begin)

    def passing(self, keys: Iterable[str]) -> Watermark:
        """Return how far the watch has come once these snapshots were announced."""
        newest = sorted(self.announced.union(keys), key=snapshot_order)[-REMEMBERED:]
        return Watermark(newest[0] if len(newest) == REMEMBERED else self.begin, frozenset(newest))
