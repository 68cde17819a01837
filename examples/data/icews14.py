"""Conversion of ICEWS14 to daily snapshots.

``python -m examples.data.icews14 SOURCE DEST [--first DAY] [--last DAY]``

SOURCE is a folder with ``train.tsv``, ``valid.tsv`` and ``test.tsv`` (head, relation, tail, date), or an archive with
them. The splits are joined, for a nightly run makes its own. DEST/DAY/edges.parquet holds every triple that was true on
some day up to DAY, once; `examples/graphs/icews14.yaml` reads it.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from examples.data.archives import read_rows, unpack
from pbg_tasks.errors import InputError, PbgError

_FILES = ("train.tsv", "valid.tsv", "test.tsv")
_COLUMNS = ("lhs", "rel", "rhs")
_FIRST, _LAST = dt.datetime(2014, 12, 27), dt.datetime(2014, 12, 31)  # noqa: DTZ001 - days, in the data's own zone

Triple = tuple[str, str, str]
Day = Annotated[dt.datetime, typer.Option(formats=["%Y-%m-%d"])]


def first_days(source: Path) -> dict[Triple, str]:
    """Return the first day of each triple.

    Raises:
        InputError: files are missing or damaged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if source.is_file():
            unpack(source, Path(scratch))
            source = Path(scratch)
        found = {path.name: path for path in sorted(source.rglob("*.tsv"))}
        missing = [name for name in _FILES if name not in found]
        if missing:
            raise InputError(f"{source}: has no {', '.join(missing)}")
        rows = [row for name in _FILES for row in read_rows(found[name], columns=4)]
    first: dict[Triple, str] = {}
    for lhs, rel, rhs, day in rows:
        triple = (lhs, rel, rhs)
        first[triple] = min(day, first.get(triple, day))
    return first


def write_snapshots(source: Path, dest: Path, first: dt.date, last: dt.date) -> dict[str, int]:
    """Write the snapshots of some days; return their numbers of edges.

    The days are those from ``first`` to ``last``.
    """
    triples = sorted(first_days(source).items())
    sizes = {}
    for number in range((last - first).days + 1):
        day = f"{first + dt.timedelta(number):%Y-%m-%d}"
        known = [triple for triple, since in triples if since <= day]
        columns = zip(*known, strict=True) if known else [()] * len(_COLUMNS)
        (dest / day).mkdir(parents=True, exist_ok=True)
        table = pa.table({name: pa.array(column, pa.string()) for name, column in zip(_COLUMNS, columns, strict=True)})
        pq.write_table(table, dest / day / "edges.parquet")
        sizes[day] = len(known)
    return sizes


def main(source: Path, dest: Path, first: Day = _FIRST, last: Day = _LAST) -> None:
    """Write ICEWS14 as daily snapshots below DEST.

    By default they are those of the last five days.
    """
    for day, edges in write_snapshots(source, dest, first.date(), last.date()).items():
        print(f"{day}: {edges} edges")


if __name__ == "__main__":
    try:
        typer.run(main)
    except PbgError as error:
        sys.exit(f"error: {error.kind}: {error}")
