"""``training_stats.json``: one JSON line a bucket, kept beside the checkpoint for people and PBG's readers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pbg_tasks.errors import NotFoundError
from pbg_tasks.formats.directory import parse_stats_line
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store

FILE_NAME = "training_stats.json"


class StatsMirror:
    """The lines of all committed iterations; those of an interrupted one are dropped when it is trained again."""

    def __init__(self, store: Store, prefix: str, done: Iteration | None) -> None:
        self._store, self._key = store, join(prefix, FILE_NAME)
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
        """Return the mean loss per edge of each committed iteration.

        Raises:
            FormatError: another program left a line that holds no statistics.
        """
        totals: dict[tuple[int, int, int], list[float]] = {}
        for text in self._lines:
            line = parse_stats_line(text, source=f"{self._store.url}/{self._key}")
            if line is not None:
                total = totals.setdefault((line.epoch_idx, line.edge_path_idx, line.edge_chunk_idx), [0.0, 0.0])
                total[0] += line.stats.loss * line.stats.count
                total[1] += line.stats.count
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
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
