"""Edges that are new or gone since the release before, by relation.

An edge is identified by 64 bits of its names' MD5: among a billion edges, two are taken for one with a chance of 3 in
100. Each night leaves the bits of its edges, sorted within their relations, in a Parquet file of about 6 bytes an edge.
Sorted together with that file, the snapshot shows its duplicates, and which edges are new or gone; the sort spills to
disk where memory ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pbg_tasks.formats.names import EDGE_HASHES as EDGE_HASHES  # noqa: PLC0414 - for users of this module
from pbg_tasks.formats.tables import bits_of_files, file_names
from pbg_tasks.prepare.connection import loading
from pbg_tasks.prepare.sql import DUCKDB, quoted, table
from pbg_tasks.prepare.sql import difference as text

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import GraphSpec


@dataclass(frozen=True, slots=True)
class RelationEdges:
    """Numbers of distinct edges of a relation; ``rows`` also counts duplicates."""

    rows: int
    now: int
    before: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class EdgeChanges:
    """Changes of the edges since the snapshot before, in numbers.

    Attributes:
        now: distinct edges.
        before: distinct edges before.
        added: those that were not there before.
        removed: those that are gone.
        exact: False where only numbers of rows are known: then ``added`` and ``removed`` are lower bounds.
        relations: the same by relation, empty where that is not known.
    """

    now: int
    before: int
    added: int
    removed: int
    exact: bool = True
    relations: dict[str, RelationEdges] = field(default_factory=dict)

    @classmethod
    def of_relations(cls, relations: dict[str, RelationEdges]) -> EdgeChanges:
        """Return the sums over relations."""
        every = relations.values()
        return cls(
            now=sum(each.now for each in every),
            before=sum(each.before for each in every),
            added=sum(each.added for each in every),
            removed=sum(each.removed for each in every),
            relations=relations,
        )

    @classmethod
    def of_rows(cls, *, now: int, before: int) -> EdgeChanges:
        """Return the changes that follow from two numbers of rows."""
        return cls(now, before, max(now - before, 0), max(before - now, 0), exact=False)


def find_edges(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, before: Path | None) -> dict[str, RelationEdges]:
    """Count the distinct edges of the open snapshot and of that before.

    The tables ``labels`` and ``marks`` are made.

    Args:
        connection: with the snapshot's view ``raw``, every row of which has been checked.
        spec: of the graph.
        before: ``EDGE_HASHES`` of the snapshot before; None where there is none.

    Returns:
        Counts by the relation's label: its name, and the types of its ends where the snapshot's columns give them.

    Raises:
        FormatError: ``before`` is not of this format.
    """
    _open_before(connection, before)
    connection.execute(f"CREATE OR REPLACE TEMP VIEW labelled AS {text.labelled(DUCKDB, spec)}")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW present_labels AS {text.PRESENT}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE labels AS {text.LABELS}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE marks AS {text.marks(DUCKDB)}")
    rows = connection.execute(text.COUNTS).fetchall()
    return {name: RelationEdges(*counts) for name, *counts in rows}


def _open_before(connection: duckdb.DuckDBPyConnection, before: Path | None) -> None:
    """Make the view ``marks_before(relation, hash)``, empty without a file."""
    if before is None:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW marks_before AS {text.no_marks(DUCKDB)}")
        return
    with loading(before):
        rows = f"SELECT relation, hash FROM {table(before)}"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW marks_before AS {rows}")
        connection.execute("SELECT count(*) FROM marks_before")  # opens all files, the view only the first


def write_edge_hashes(connection: duckdb.DuckDBPyConnection, out: Path) -> None:
    """Write ``EDGE_HASHES`` of the snapshot in the table ``marks``.

    The same edges give the same bytes.
    """
    ((edges,),) = connection.execute(text.DISTINCT).fetchall()
    bits = bits_of_files(edges)
    for number, name in enumerate(file_names(EDGE_HASHES, 1 << bits)):
        own = f"AND {text.file(DUCKDB, bits)} = {number}" if bits else ""
        connection.execute(
            f"COPY ({text.HASHES} {own} ORDER BY id, {DUCKDB.ordered('hash')}) "
            f"TO {quoted(str(out / name))} (FORMAT parquet, PARQUET_VERSION V2, COMPRESSION zstd)"
        )
