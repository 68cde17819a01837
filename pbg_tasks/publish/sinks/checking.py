"""Checks of a filled table: its rows, sampled vectors and recall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import ConflictError, FormatError
from pbg_tasks.publish.exchange.nearest import Recall, pieces
from pbg_tasks.publish.sinks.base import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.publish.exchange.contents import EntityRows
    from pbg_tasks.publish.exchange.nearest import Form
    from pbg_tasks.publish.sinks.base import TableRecord, Tables

_CLOSE = 1e-5
"""Largest difference of a number of a vector of length 1, which some stores scale themselves."""


def first_rows(numbers: Iterable[np.ndarray], where: str) -> int:
    """Return the number of rows, which have to be the first ones.

    Args:
        numbers: int64 of all rows, in any order, in parts.
        where: names the table.

    Raises:
        ConflictError: a number is missing or comes twice.
    """
    found, seen = 0, np.zeros(1024, bool)
    for part in numbers:
        if not len(part):
            continue
        largest = int(part.max())
        if largest >= len(seen):
            seen = np.concatenate([seen, np.zeros(max(len(seen), largest + 1 - len(seen)), bool)])
        seen[part] = True
        found += len(part)
    if found != np.count_nonzero(seen) or not seen[:found].all():
        raise ConflictError(
            f"{where}: has rows twice or lacks some, as after two exports at once; end the other one, and run this one "
            "again: it fills the table anew"
        )
    return found


def sampled(rows: EntityRows, count: int) -> tuple[np.ndarray, Rows]:
    """Return at most ``count`` rows, regularly spaced.

    Returns:
        Ascending numbers, int64 (S,), and the rows with all dimensions.
    """
    numbers_S = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64))
    names: list[str] = []
    vectors, start = [np.empty((0, rows.dimension), np.float32)], 0
    for block in rows.blocks():
        inside = numbers_S[(numbers_S >= start) & (numbers_S < start + len(block.names))] - start
        names += [block.names[place] for place in inside.tolist()]
        vectors.append(block.vectors[inside])
        start += len(block.names)
    return numbers_S, Rows(names, np.concatenate(vectors))


def check_rows(
    tables: Tables, table: str, record: TableRecord, numbers_S: np.ndarray, expected: Rows, moved: float = 0.0
) -> None:
    """Compare sampled rows of a table with the model's.

    Args:
        tables: of the store.
        table: that is checked.
        record: of the table.
        numbers_S: ascending numbers of the rows, int64 (S,).
        expected: names and vectors of the model, float32 (S, D).
        moved: share of its length by which a vector may differ.

    Raises:
        FormatError: one is missing or differs.
    """
    found = tables.fetch(table, record, numbers_S)
    if list(found.names) != list(expected.names):
        wrong = next((pair for pair in zip(expected.names, found.names, strict=False) if pair[0] != pair[1]), None)
        what = f"has {wrong[1]!r:.60} in place of {wrong[0]!r:.60}" if wrong else "lacks rows that were written"
        raise FormatError(f"table {table} {what}; drop it, and run the export again")
    if moved:
        same = ~moved_above(found.vectors, expected.vectors, moved + _CLOSE)
    elif record.metric == "cosine":
        same = np.isclose(_unit(found.vectors), _unit(expected.vectors), rtol=0, atol=_CLOSE).all(axis=1)
    else:
        same = (found.vectors == expected.vectors).all(axis=1)
    if not same.all():
        raise FormatError(
            f"table {table} has another vector of {expected.names[int(np.argmin(same))]!r:.60} than the model; "
            "drop it, and run the export again"
        )


def moved_above(old_ND: np.ndarray, new_ND: np.ndarray, share: float) -> np.ndarray:
    """Return which vectors differ by more than a share of their length.

    With the share 0 these are all that are not equal.

    Returns:
        bool (N,).
    """
    differences = np.square(new_ND - old_ND, dtype=np.float64).sum(axis=1)
    allowed = share**2 * np.square(new_ND, dtype=np.float64).sum(axis=1)
    moved: np.ndarray = differences > allowed
    return moved


def recall_of(
    tables: Tables,
    table: str,
    record: TableRecord,
    rows: EntityRows,
    form: Form,
    asked: tuple[np.ndarray, np.ndarray],
    wanted: int,
    places: np.ndarray | None = None,
) -> float:
    """Return the share of the nearest rows that a table's search finds.

    Args:
        tables: of the store.
        table: that is searched.
        record: of the table.
        rows: of the model.
        form: of the vectors.
        asked: numbers of the model's rows whose neighbours are searched, int64 (S,), and their vectors as they were
            written, float32 (S, D).
        wanted: number of neighbours of each.
        places: int64 (N,), number of each row of the table in the model, where they are others.
    """
    neighbors = min(wanted, len(rows) - 1)
    if neighbors < 1:
        return 1.0  # no row has a neighbour
    numbers_S, queries_SD = asked
    found_SK = tables.search(table, record, queries_SD, neighbors + 1)
    if places is not None:
        found_SK = np.where(found_SK < 0, -1, places[found_SK])
    prepared_SD = _unit(queries_SD) if form.normalized else queries_SD
    recall = Recall(numbers_S, prepared_SD, found_SK, neighbors, distance=form.distance)
    for block in pieces(rows, len(numbers_S)):
        recall.compare(form.prepared(block))
    return recall.value()


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    scaled: np.ndarray = vectors_ND / np.maximum(lengths, 1e-12)
    return scaled
