"""Validation on Spark, where a task checks and stores a file's rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pbg_tasks.formats.tables import bits_of_files, file_names
from pbg_tasks.prepare.difference import EDGE_HASHES, EdgeChanges, RelationEdges
from pbg_tasks.prepare.sources import blamed, snapshot_source
from pbg_tasks.prepare.spark.files import OUTCOME
from pbg_tasks.prepare.spark.reading import LISTED, ReadStaged, ReadTable, StageFiles
from pbg_tasks.prepare.spark.writing import WriteTable
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql import difference as text
from pbg_tasks.prepare.sql.spark import SPARK
from pbg_tasks.prepare.validate import SHOWN_RELATIONS, NoEdgesError, SnapshotReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config import GraphSpec, SnapshotFile
    from pbg_tasks.prepare.spark.files import Destination, StoredFile, StoredFiles
    from pbg_tasks.prepare.spark.session import Tables

_MOST_SHARES = 1000
STORED = "key string, sha256 string, size long"


def staged_name(number: int) -> str:
    """Return the name of a file's staged rows."""
    return f"edges-{number:06}.parquet"


def validate_snapshot(
    tables: Tables,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    *,
    before: StoredFiles | None,
    destination: Destination,
) -> tuple[SnapshotReport, dict[str, StoredFile]]:
    """Stage a snapshot, check every row, and find its changes.

    Args:
        tables: of the task.
        spec: of the graph.
        files: of the snapshot; the executors read them.
        before: has ``EDGE_HASHES`` of the snapshot to compare with; None: with none.
        destination: of this one's, and of its rows, a file for each of its files.

    Returns:
        The report, and the files that were stored.

    Raises:
        FormatError: ``before`` is damaged.
        InputError: a file cannot be read, or a row is bad; the message names file, line and column.
        NoEdgesError: there are no rows.
    """
    outcomes = tables.outcomes(tables.spread(listed(spec, files), LISTED, StageFiles(spec, destination), OUTCOME))
    found = [json.loads(each.figures) for each in outcomes]
    edges = sum(each["edges"] for each in found)
    if not edges:
        raise NoEdgesError(f"{spec.snapshots.location}: the snapshot has no edges ({len(files)} files)")
    stored = tables.written_of(outcomes)
    staged = destination.files(stored)
    tables.expect(staged.size)
    relations = _compare(tables, spec, staged, before)
    changes = EdgeChanges.of_relations(relations)
    stored |= _write_hashes(tables, spec, changes.now, destination)
    weights = [each["weights"] for each in found if each["weights"]]
    columns: dict[str, set[str]] = {}
    for each in found:
        for name, kinds in each["columns"].items():
            columns.setdefault(name, set()).update(kinds)
    return (
        SnapshotReport(
            edges=edges,
            self_loops=sum(each["self_loops"] for each in found),
            duplicates=edges - changes.now,
            relations=dict([(name, each.rows) for name, each in relations.items() if each.rows][:SHOWN_RELATIONS]),
            weights=(min(low for low, _ in weights), max(high for _, high in weights)) if weights else None,
            columns={name: sorted(kinds) for name, kinds in columns.items()},
            changes=changes if before is not None else None,
        ),
        stored,
    )


def listed(spec: GraphSpec, files: Sequence[SnapshotFile]) -> list[tuple[str, str, int, str, int, int]]:
    """Return rows ``LISTED``, one for each task.

    It reads a file, or a data file of a table. Each task plans a table's version again, so that there are never more
    than ``_MOST_SHARES`` of one.
    """
    source = snapshot_source(spec.snapshots)
    with blamed(spec.snapshots.format):
        counts = [min(max(len(source.pieces(file)), 1), _MOST_SHARES) for file in files]
    shares = [(file, number, count) for file, count in zip(files, counts, strict=True) for number in range(count)]
    return [
        (staged_name(index), file.uri, file.size, file.version, number, count)
        for index, (file, number, count) in enumerate(shares)
    ]


def read_staged(
    tables: Tables,
    spec: GraphSpec,
    staged: StoredFiles,
    view: str,
    query: str,
    columns: str,
    relations: list[str] | None = None,
) -> None:
    """Make a view of what executors read of staged rows; see ``ReadStaged``."""
    rows = [staged.row(name) for name in sorted(staged.files) if name.startswith("edges-")]
    read = ReadStaged(spec, staged.store, query, columns, relations)
    tables.view(view, tables.spread(rows, STORED, read, columns))


def read_hashes(tables: Tables, files: StoredFiles) -> None:
    """Make the view ``marks_before`` of ``EDGE_HASHES`` of another night."""
    read = ReadTable(files.store, {"relation": "string", "hash": "int64"}, {})
    tables.view("marks_before", tables.spread(files.table(EDGE_HASHES), STORED, read, "relation string, hash long"))


def _compare(
    tables: Tables, spec: GraphSpec, staged: StoredFiles, before: StoredFiles | None
) -> dict[str, RelationEdges]:
    if before is None:
        tables.view("marks_before", text.no_marks(SPARK))
    else:
        read_hashes(tables, before)
    labelled = text.labelled(DUCKDB, spec)
    present = f"WITH labelled AS ({labelled}) {text.PRESENT}"
    read_staged(tables, spec, staged, "present_labels", present, "label string")
    read_staged(tables, spec, staged, "labelled", labelled, "label string, hash long")
    tables.table("labels", text.LABELS)
    tables.table("marks", text.marks(SPARK))
    return {name: RelationEdges(*counts) for name, *counts in tables.rows(text.COUNTS)}


def _write_hashes(tables: Tables, spec: GraphSpec, edges: int, destination: Destination) -> dict[str, StoredFile]:
    bits = bits_of_files(edges)
    write = WriteTable(
        spec,
        file_names(EDGE_HASHES, 1 << bits),
        {"relation": "string", "hash": "uint64"},
        "SELECT relation, hash FROM listed ORDER BY relation, hash",
        "PARQUET_VERSION V2, COMPRESSION zstd",
        destination,
    )
    return tables.write(text.HASHES, write, text.file(SPARK, bits))
