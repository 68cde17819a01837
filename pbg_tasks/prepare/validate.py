"""Validation of a snapshot: every row is checked before it is used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import phase
from pbg_tasks.prepare.difference import EdgeChanges, find_edges, write_edge_hashes
from pbg_tasks.prepare.relations import make_relations, unknown_relation
from pbg_tasks.prepare.snapshot import open_numbered, open_snapshot, reading, write_staged
from pbg_tasks.prepare.sources import blamed, snapshot_source
from pbg_tasks.prepare.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb
    from pydantic import JsonValue

    from pbg_tasks.config import GraphSpec, SnapshotFile

MAX_NAME_BYTES = 4096
SHOWN_RELATIONS = 1000


class NoEdgesError(InputError):
    """Error: a snapshot has no row.

    It may be a quiet day, or its producer may have failed.
    """


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Result of one pass over every row.

    Attributes:
        edges: rows.
        self_loops: rows that lead from an entity to itself.
        weights: smallest and largest weight, None without a weight column.
        columns: types of each column of the files, by its name.
    """

    edges: int
    self_loops: int
    weights: tuple[float, float] | None
    columns: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """Report on a snapshot.

    Attributes:
        edges: rows.
        self_loops: rows that lead from an entity to itself.
        duplicates: rows that repeat an earlier (lhs, rel, rhs).
        relations: edges by relation, the 1000 most frequent.
        weights: smallest and largest weight, None without a weight column.
        columns: types of each column of the files, by its name.
        changes: since the snapshot before; None without one.
    """

    edges: int
    self_loops: int
    duplicates: int
    relations: dict[str, int]
    weights: tuple[float, float] | None
    columns: dict[str, list[str]]
    changes: EdgeChanges | None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the report as plain JSON values."""
        return asdict(self)


# Conditions of bad rows, as SQL over `raw`, and their descriptions. The order matters: the first one that holds is
# reported.
_REL_CHECKS = (
    ("rel IS NULL OR rel = ''", "empty relation in column rel"),
    ("contains(rel, chr(0))", "relation with a NUL byte in column rel"),
    (f"strlen(rel) > {MAX_NAME_BYTES}", f"relation longer than {MAX_NAME_BYTES} bytes in column rel"),
)
_WEIGHT_CHECK = (
    "TRY_CAST(weight AS FLOAT) IS NULL OR NOT isfinite(TRY_CAST(weight AS FLOAT)) OR TRY_CAST(weight AS FLOAT) < 0",
    "weight that is not a finite number of at least 0",
)
_FIT_CHECK = ("NOT fits", "")  # described by unknown_relation


def validate_snapshot(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    *,
    before: Path | None,
    out: Path,
) -> SnapshotReport:
    """Stage a snapshot, check every row, and find its changes.

    Its files are read once: the staged rows are checked, and later tasks read them.

    Args:
        connection: for the work.
        spec: of the graph.
        files: of the snapshot.
        before: ``EDGE_HASHES`` of the snapshot to compare with; None: with none.
        out: directory for this one's, and for its rows, ``STAGED``.

    Raises:
        FormatError: ``before`` is damaged.
        InputError: a file cannot be read, or a row is bad; the message names file, line and column.
        NoEdgesError: there are no rows.
    """
    staged, columns = write_staged(connection, spec, files, out)
    checked = check_rows(connection, spec, staged)
    with phase(connection, "compare"), reading(files):
        relations = find_edges(connection, spec, before)
        write_edge_hashes(connection, out)
    changes = EdgeChanges.of_relations(relations)
    counted = {name: each.rows for name, each in relations.items() if each.rows}
    return SnapshotReport(
        edges=checked.edges,
        self_loops=checked.self_loops,
        duplicates=checked.edges - changes.now,
        relations=dict(list(counted.items())[:SHOWN_RELATIONS]),
        weights=checked.weights,
        columns=columns,
        changes=changes if before is not None else None,
    )


def check_rows(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile]) -> CheckedRows:
    """Check every row.

    Raises:
        InputError: a file cannot be read, or a row is bad; the message names file, line and column.
        NoEdgesError: there are no rows.
    """
    columns = open_snapshot(connection, spec, files)
    fits = f"EXISTS (SELECT 1 FROM relations WHERE {make_relations(connection, spec)})"
    checked = f"(SELECT *, {fits} AS fits FROM raw)"
    checks = [
        *_end_checks(spec),
        *(_REL_CHECKS if spec.columns.rel is not None else ()),
        *_header_check(spec),
        *([_WEIGHT_CHECK] if spec.columns.weight is not None else []),
        _FIT_CHECK,
    ]
    with phase(connection, "validate"), reading(files):
        edges, loops, low, high, *bad = _count(connection, checked, _self_loop(spec), checks)
        if edges == 0:
            held = f"{len(files)} files, none with a row, as {files[0].uri}" if files else "its folder holds no files"
            if len(files) == 1:
                held = f"its only file, {files[0].uri}, has no row"
            raise NoEdgesError(f"{spec.snapshots.location}: the snapshot has no edges ({held})")
        for (condition, sentence), count in zip(checks, bad, strict=True):
            if count:
                raise _bad_row(connection, spec, files, f"SELECT * FROM {checked} WHERE {condition}", sentence, count)
    return CheckedRows(edges, loops, (low, high) if spec.columns.weight is not None else None, columns)


def _end_checks(spec: GraphSpec) -> Iterator[tuple[str, str]]:
    entities = spec.model.entities
    for end in ("lhs", "rhs"):
        yield f"{end} IS NULL OR {end} = ''", f"empty id in column {end}"
        yield f"contains({end}, chr(0))", f"id with a NUL byte in column {end}"
        if not any(entities[getattr(relation, end)].featurized for relation in spec.model.relations):
            yield f"strlen({end}) > {MAX_NAME_BYTES}", f"id longer than {MAX_NAME_BYTES} bytes in column {end}"


def _header_check(spec: GraphSpec) -> Iterator[tuple[str, str]]:
    """Yield the check for a header among the rows.

    Files that were joined have one, which would be an edge.
    """
    columns = spec.columns
    if columns.rel is not None:
        condition = f"lhs = {quoted(columns.lhs)} AND rel = {quoted(columns.rel)} AND rhs = {quoted(columns.rhs)}"
        yield condition, "has the names of the columns, as a header does; remove it"


def _self_loop(spec: GraphSpec) -> str:
    """Return the condition of rows that lead from an entity to itself.

    A user and an item of the same name are two entities.
    """
    relations = spec.model.relations
    within = [relation.name for relation in relations if relation.lhs == relation.rhs]
    if len(within) == len(relations):
        return "lhs = rhs"
    if spec.columns.lhs_type is not None:
        return "lhs = rhs AND lhs_type = rhs_type"
    return f"lhs = rhs AND rel IN ({', '.join(map(quoted, within))})" if within else "false"


def _count(
    connection: duckdb.DuckDBPyConnection, checked: str, self_loop: str, checks: list[tuple[str, str]]
) -> tuple[Any, ...]:
    counted = "".join(f", count(*) FILTER ({condition})" for condition, _ in checks)
    (row,) = connection.execute(
        f"SELECT count(*), count(*) FILTER ({self_loop}), min(TRY_CAST(weight AS FLOAT)), "
        f"max(TRY_CAST(weight AS FLOAT)){counted} FROM {checked}"
    ).fetchall()
    return tuple(row)


def _bad_row(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    query: str,
    sentence: str,
    count: int,
) -> InputError:
    """Return the error for the first row that ``query`` finds.

    It is searched file by file.
    """
    for file in files:
        place = open_numbered(connection, spec, file)
        found = connection.execute(
            f"SELECT row, rel, lhs_type, rhs_type FROM ({query}) ORDER BY row LIMIT 1"
        ).fetchall()
        if found:
            break
    else:  # a damaged file may give other rows when it is read alone
        names = ", ".join(file.uri for file in files)
        fault = sentence or "unknown relation"
        return InputError(f"{names}: {count} rows are wrong ({fault}), but none when read again; write the files again")
    ((row, *kind_of),) = found
    with blamed(spec.snapshots.format):
        where = snapshot_source(spec.snapshots).where(spec.snapshots, file, place, row)
    if sentence:
        least = "at least " if spec.resources.engine == "spark" else ""  # a task there knows its own files only
        return InputError(f"{where}: {sentence} ({least}{count} such rows in the snapshot)")
    return unknown_relation(connection, spec, where, tuple(kind_of))
