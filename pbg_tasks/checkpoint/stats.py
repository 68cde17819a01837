"""Statistics of a training as JSON lines beside the checkpoint.

They are for people, pages and PBG's readers. ``training_stats.json`` is PBG's and has its keys alone.
``training_io.json`` is this package's: the time that each iteration took and waited.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pbg_tasks.errors import NotFoundError
from pbg_tasks.formats.directory import parse_stats_line, split_line
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store

    Place = tuple[int, int, int]

FILE_NAME = "training_stats.json"
IO_FILE_NAME = "training_io.json"


class StatsMirror:
    """Lines of all committed iterations.

    The lines of an interrupted iteration are dropped when it is trained again.
    """

    def __init__(self, store: Store, prefix: str, done: Iteration | None) -> None:
        self._store, self._key = store, join(prefix, FILE_NAME)
        self._io_key = join(prefix, IO_FILE_NAME)
        self._lines: list[str] = []
        self._io: dict[Place, str] = {}
        if done is not None:
            last = (done.epoch_idx, done.edge_path_idx, done.edge_chunk_idx)
            for key in (self._io_key, self._key):
                self._add(line for line in self._stored(key) if (place := _place(line)) is not None and place <= last)

    def _stored(self, key: str) -> list[str]:
        try:
            return self._store.get(key).data.decode("utf-8", "replace").splitlines()
        except NotFoundError:
            return []

    def _add(self, lines: Iterator[str]) -> None:
        """Add lines to the file of their kind."""
        for line in lines:
            stats, io = split_line(line)
            if stats is not None:
                self._lines.append(stats)
            if io is not None and (place := _place(io)) is not None:
                self._io[place] = io

    def losses(self) -> list[float]:
        """Return the mean loss per edge of each committed iteration.

        Raises:
            FormatError: another program left a line that holds no statistics.
        """
        totals: dict[Place, list[float]] = {}
        for text in self._lines:
            line = parse_stats_line(text, source=f"{self._store.url}/{self._key}")
            if line is not None:
                total = totals.setdefault((line.epoch_idx, line.edge_path_idx, line.edge_chunk_idx), [0.0, 0.0])
                total[0] += line.stats.loss * line.stats.count
                total[1] += line.stats.count
        return [round(loss / max(count, 1.0), 6) for _, (loss, count) in sorted(totals.items())]

    def append(self, lines: list[str]) -> None:
        """Add an iteration's lines to the files of their kinds; write both."""
        self._add(line.rstrip("\n") for line in lines)
        # The first file may take over lines of the second. It is written first, so that a kill between the two writes
        # loses none.
        for key, kept in ((self._io_key, [self._io[place] for place in sorted(self._io)]), (self._key, self._lines)):
            self._store.put(key, "".join(f"{line}\n" for line in kept).encode())


def _place(line: str) -> Place | None:
    """Return the iteration of a line, as its place.

    None is returned for a line that was cut off by a crash of another program.
    """
    try:
        entry = json.loads(line)
        return int(entry["epoch_idx"]), int(entry["edge_path_idx"]), int(entry["edge_chunk_idx"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
