"""``training_stats.json``: one JSON line a bucket, kept beside the checkpoint for people and PBG's readers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pbg_tasks.errors import NotFoundError

if TYPE_CHECKING:
    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store

FILE_NAME = "training_stats.json"


class StatsMirror:
    """The lines of all committed iterations; those of an interrupted one are dropped when it is trained again."""

    def __init__(self, store: Store, prefix: str, done: Iteration | None) -> None:
        self._store, self._key = store, f"{prefix}/{FILE_NAME}"
        self._lines = self._committed(done)

    def _committed(self, done: Iteration | None) -> list[str]:
        if done is None:
            return []
        last = (done.epoch_idx, done.edge_path_idx, done.edge_chunk_idx)
        try:
            text = self._store.get(self._key).data.decode("utf-8", "replace")
        except NotFoundError:
            return []
        return [line for line in text.splitlines() if (place := _place(line)) is not None and place <= last]

    def losses(self) -> list[float]:
        """Return the mean loss per edge of each committed iteration."""
        totals: dict[tuple[int, int, int], list[float]] = {}
        for line in self._lines:
            place, stats = _place(line), json.loads(line).get("stats")
            if place is not None and stats:
                total = totals.setdefault(place, [0.0, 0.0])
                total[0] += stats["metrics"]["loss"] * stats["count"]
                total[1] += stats["count"]
        return [round(loss / max(count, 1.0), 6) for _, (loss, count) in sorted(totals.items())]

    def append(self, lines: list[str]) -> None:
        """Add an iteration's lines and write the file."""
        self._lines += [line.rstrip("\n") for line in lines]
        self._store.put(self._key, "".join(f"{line}\n" for line in self._lines).encode())


def _place(line: str) -> tuple[int, int, int] | None:
    """Return which iteration a line belongs to; None for a line cut off by a crash of another program."""
    try:
        entry = json.loads(line)
        return int(entry["epoch_idx"]), int(entry["edge_path_idx"]), int(entry["edge_chunk_idx"])
    except (ValueError, KeyError, TypeError):
        return None
