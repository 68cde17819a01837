"""Dated edges as daily snapshots.

A snapshot has all edges known by then, or those of the last days only.
"""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.quality.data import ICEWS14, cache_directory, obtain
from examples.data.archives import read_rows, unpack
from pbg_tasks.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.storage import Store

PAST = 31
"""Number of days before the first night, where there are so many; night one's snapshot contains them."""
AHEAD = 14
"""Number of coming days whose edges are ranked."""
_COLUMNS = 4
_DAY = re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)")
_SIGNS = {"+": True, "-": False}

Edge = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DatedEdges:
    """Changes of edges, by day.

    Attributes:
        changes: by day in order, for each day with any: edges that are (again) there, or no longer.
        signed: whether edges are also removed; otherwise each is a fact of its day.
    """

    changes: dict[str, dict[Edge, bool]]
    signed: bool

    def chosen(self, count: int, first: str | None = None, every: int = 1) -> list[str]:
        """Return ``count`` days that get a night, from ``first`` on.

        Without ``first``, ``PAST`` days before them are left.

        Args:
            count: of days.
            first: of them.
            every: how many days from one to the next.

        Raises:
            InputError: there are not so many.
        """
        days = list(self.changes)
        if first is None:
            first = days[max(0, min(PAST, len(days) - count * every))]
        chosen = [day for day in days if day >= first][::every][:count]
        if len(chosen) < count:
            raise InputError(f"only {len(chosen)} days have edges from {first} on; {count} were asked for")
        return chosen

    def snapshots(self, days: list[str], window: int | None = None) -> Iterator[tuple[str, list[Edge]]]:
        """Walk the snapshots of ``days``, each edge once, in order of names.

        Args:
            days: some of the existing ones, in order.
            window: number of days whose facts make a snapshot, its own included; None: all days so far.

        Raises:
            InputError: a window was given for edges whose removals are in the data.
        """
        if window is not None and self.signed:
            raise InputError("a window has no meaning here: the data says of every edge when it goes")
        wanted, seen = set(days), dict[Edge, str]()
        for day, changed in self.changes.items():
            for edge, there in changed.items():
                if there:
                    seen[edge] = day
                else:
                    seen.pop(edge, None)
            if day in wanted:
                oldest = str(dt.date.fromisoformat(day) - dt.timedelta(window - 1)) if window else ""
                yield day, sorted(edge for edge, last in seen.items() if last >= oldest)

    def coming(self, day: str) -> set[Edge]:
        """Return the edges of the ``AHEAD`` days after a day."""
        return {
            edge
            for later in [each for each in self.changes if each > day][:AHEAD]
            for edge, there in self.changes[later].items()
            if there
        }


def read_dated_edges(source: Path) -> DatedEdges:
    """Read every TSV file below a folder, or in an archive.

    A line has head, relation, tail, day; or day, + or -, head, tail. Without a fourth cell, the day is the one in the
    name of the file or of its folder: ``2026-11-20.tsv``, ``day=2026-11-20/part-0.tsv.gz``.

    Raises:
        InputError: there is none, a line has not four cells, or a day is no ISO date.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if source.is_file():
            unpack(source, Path(scratch))
            source = Path(scratch)
        paths = sorted((*source.rglob("*.tsv"), *source.rglob("*.tsv.gz")))
        rows = [row for path in paths for row in _read_file(path, source)]
    if not rows:
        raise InputError(f"{source}: no TSV file with dated edges in it")
    signed = all(row[1] in _SIGNS for row in rows)
    changes: defaultdict[str, dict[Edge, bool]] = defaultdict(dict)
    for row in rows:
        if signed:
            day, sign, lhs, rhs = row
            changes[day][lhs, "linked", rhs] = _SIGNS[sign]
        else:
            lhs, rel, rhs, day = row
            changes[day][lhs, rel, rhs] = True
    for day in changes:
        _check_day(day, source)
    return DatedEdges({day: changes[day] for day in sorted(changes)}, signed)


def _read_file(path: Path, source: Path) -> list[list[str]]:
    rows = read_rows(path, columns=(_COLUMNS - 1, _COLUMNS))
    if all(len(row) == _COLUMNS for row in rows):
        return rows
    days = _DAY.findall(str(path.relative_to(source)))
    if not days:
        raise InputError(f"{path}: lines of head, relation, tail need a day, such as 2026-11-20, in the file's name")
    return [row if len(row) == _COLUMNS else [*row, days[-1]] for row in rows]


def _check_day(day: str, source: Path) -> None:
    try:
        same = str(dt.date.fromisoformat(day)) == day
    except ValueError:
        same = False
    if not same:
        raise InputError(f"{source}: {day!r} is no day such as 2026-11-20; the lines are head, relation, tail, day")


def find(name: str, folder: Path) -> tuple[str, Path]:
    """Return the name and the path of a data set.

    It is ``icews14``, which may be fetched, one in ``folder``, or a path.

    Raises:
        InputError: there is nothing.
    """
    if name == ICEWS14.name:
        return name, obtain(ICEWS14, folder, cache_directory())
    for path in (folder / name, folder / f"{name}.tar.zst", Path(name)):
        if path.exists():
            return path.name.split(".")[0], path
    raise InputError(f"{name}: neither a folder or archive of TSV files, nor in {folder}; a name is {ICEWS14.name!r}")


def write_snapshot(store: Store, day: str, edges: list[Edge], columns: Sequence[str] = ("lhs", "rel", "rhs")) -> None:
    """Store a snapshot as ``snapshots/DAY/edges.parquet``.

    An existing one of the same bytes stays, with the runs made of it.
    """
    cells = list(zip(*edges, strict=True)) or [(), (), ()]
    table = pa.table({name: pa.array(each, pa.string()) for name, each in zip(columns, cells, strict=True)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    key, data = f"snapshots/{day}/edges.parquet", sink.getvalue().to_pybytes()
    if store.head(key) is None or store.get(key).data != data:
        store.put(key, data)
