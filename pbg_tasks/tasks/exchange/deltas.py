"""Deltas: changes of a release to a copy of an earlier table.

A row keeps its number while its entity is there and its vector is near. Entities that are new, or moved, are written;
those that are gone leave numbers, which new ones take, and at last the end of the table is cut off. So the rows are the
first ones again, and what is missing is found by comparing a table with the model: a try that was killed half-way is
compared, and goes on, like any other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.publish.sinks import Rows
from pbg_tasks.publish.sinks.checking import moved_above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.publish.exchange import EntityRows
    from pbg_tasks.publish.sinks import CopiedTables, TableRecord

MOST_WRITTEN = 0.5
"""Largest share of rows that a delta writes; with more of them, a whole table costs less and searches better."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Difference between a table and a model of N rows.

    Attributes:
        numbers_N: number in the table of each row of the model, int64 (N,); all numbers from 0 to N - 1.
        written_N: whether the row has to be written, bool (N,).
        before: number of rows that the table had.
    """

    numbers_N: np.ndarray
    written_N: np.ndarray
    before: int

    @property
    def written(self) -> int:
        """Number of rows that have to be written."""
        return int(np.count_nonzero(self.written_N))

    @property
    def is_small(self) -> bool:
        """Whether a delta is better than a whole table."""
        return self.written <= MOST_WRITTEN * len(self.numbers_N)

    def places(self) -> np.ndarray:
        """Return the model's place of each table row, int64 (N,)."""
        places_N = np.empty_like(self.numbers_N)
        places_N[self.numbers_N] = np.arange(len(self.numbers_N))
        return places_N


def base_of(
    records: Mapping[str, TableRecord], served: Mapping[str, str], wanted: TableRecord, whole_every: int
) -> str | None:
    """Return the table that a new one copies.

    It has vectors of the same space, options and form; None is returned where there is none. The served one is taken
    before the newest.

    Args:
        records: of the collection, by table.
        served: table of each alias.
        wanted: record of the new table.
        whole_every: number of releases after which a table is written whole.
    """
    if wanted.contract is None or wanted.contract.space is None:
        return None
    alike = [
        table
        for table, record in records.items()
        if record.complete
        and _form(record) == _form(wanted)
        and record.contract is not None
        and record.contract.space == wanted.contract.space
    ]
    best = max(alike, key=lambda table: (served.get(wanted.alias) == table, records[table].number), default=None)
    if best is None or len(records[best].bases) + 1 >= whole_every:
        return None
    return best


def _form(record: TableRecord) -> tuple[object, ...]:
    return record.alias, record.dimension, record.metric, record.skipped_dimensions, record.options


def compare(
    parts: Iterable[tuple[np.ndarray, Rows]],
    before: int,
    rows: EntityRows,
    *,
    skipped: int,
    above: float,
    scratch: Path,
) -> Delta:
    """Compare a table with a model.

    Vectors of the table are in a file meanwhile; in memory are 16 bytes for each of its rows, and of the model's.

    Args:
        parts: of the table, as ``CopiedTables.read`` yields them.
        before: number of rows of the table, B.
        rows: of the model.
        skipped: number of first dimensions that the table lacks.
        above: share of its length by which a vector that stays may differ.
        scratch: directory of the file.
    """
    hashes_B, path = np.zeros(before, np.uint64), scratch / f"delta-{os.getpid()}.f32"
    wanted, dimension = len(rows), rows.dimension - skipped
    try:
        vectors_BD = _file(path, before, dimension)
        for numbers, part in parts:
            hashes_B[numbers], vectors_BD[numbers] = _hashes(part.names), part.vectors
        order_B = np.argsort(hashes_B, kind="stable")  # of a name that is there twice, the first row counts
        sorted_B = hashes_B[order_B]
        numbers_N, written_N = np.full(wanted, -1, np.int64), np.ones(wanted, bool)
        used_N, start = np.zeros(wanted, bool), 0
        for block in rows.blocks():
            own = slice(start, start + len(block.names))
            numbers_N[own] = _found(sorted_B, order_B, _hashes(block.names), used_N)
            there = np.flatnonzero(numbers_N[own] >= 0)
            old = vectors_BD[numbers_N[own][there]]
            written_N[own][there] = moved_above(old, block.vectors[there, skipped:], above)
            start += len(block.names)
    finally:
        path.unlink(missing_ok=True)
    numbers_N[numbers_N < 0] = np.flatnonzero(~used_N)  # ascending, so that a table grows at its end without gaps
    return Delta(numbers_N, written_N, before)


def _file(path: Path, rows: int, dimension: int) -> np.ndarray:
    """Return float32 (rows, dimension) in a file.

    Its room is taken at once: a full disk is an error here, and no signal later.
    """
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, 4 * rows * dimension))
    shape = (rows, dimension)
    return np.memmap(path, np.float32, "r+", shape=shape) if rows else np.empty(shape, np.float32)


def _hashes(names: Sequence[str]) -> np.ndarray:
    digests = (blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), np.uint64)


def _found(sorted_B: np.ndarray, order_B: np.ndarray, hashes_M: np.ndarray, used_N: np.ndarray) -> np.ndarray:
    """Return the row of each name in a table.

    The result is int64 (M,), -1 where none stays. A row beyond the new end does not stay, nor is one taken twice.
    """
    found_M = np.full(len(hashes_M), -1, np.int64)
    if not len(sorted_B):
        return found_M
    place_M = np.minimum(np.searchsorted(sorted_B, hashes_M), len(sorted_B) - 1)
    rows_M = order_B[place_M]
    there_M = np.flatnonzero((sorted_B[place_M] == hashes_M) & (rows_M < len(used_N)))
    there_M = there_M[~used_N[rows_M[there_M]]]
    taken, first = np.unique(rows_M[there_M], return_index=True)
    found_M[there_M[first]] = taken
    used_N[taken] = True
    return found_M


def write(
    tables: CopiedTables,
    table: str,
    rows: EntityRows,
    delta: Delta,
    *,
    skipped: int,
    most: int,
    wrote: Callable[[int], None],
) -> None:
    """Write what a delta changes.

    Args:
        tables: of the store.
        table: that is changed.
        rows: of the model.
        delta: between both.
        skipped: number of first dimensions that the table lacks.
        most: number of rows that are written at once.
        wrote: called with the number of rows after each batch.
    """
    for numbers, batch in _batches(rows, delta, skipped, most):
        tables.replace(table, numbers, batch)
        wrote(len(numbers))
    if delta.before > len(delta.numbers_N):
        tables.cut(table, len(delta.numbers_N))


def _batches(rows: EntityRows, delta: Delta, skipped: int, most: int) -> Iterator[tuple[np.ndarray, Rows]]:
    names: list[str] = []
    vectors: list[np.ndarray] = []
    numbers: list[np.ndarray] = []
    start = 0
    for block in rows.blocks():
        chosen = np.flatnonzero(delta.written_N[start : start + len(block.names)])
        for part in np.split(chosen, range(most, len(chosen), most)):
            names += [block.names[place] for place in part.tolist()]
            vectors.append(block.vectors[part, skipped:])
            numbers.append(delta.numbers_N[start + part])
            if len(names) >= most:
                yield np.concatenate(numbers), Rows(names, np.concatenate(vectors))
                names, vectors = [], []
                numbers = []
        start += len(block.names)
    if names:
        yield np.concatenate(numbers), Rows(names, np.concatenate(vectors))
