"""Writing of edges to buckets: ``{train,valid,test}/edges_{i}_{j}.h5``.

Every bucket of the grid is written, as a stream, in a mixed order that is always the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.config.run import DELTA
from pbg_tasks.formats.arrow_numbers import numbers
from pbg_tasks.formats.edges import EdgeFileWriter, EdgeList, edge_file_name
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.formats.files import copied
from pbg_tasks.prepare import delta as deltas
from pbg_tasks.prepare.connection import batches, loading, phase
from pbg_tasks.prepare.features import FeaturizedBucketWriter, make_bags
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.relations import make_relations
from pbg_tasks.prepare.snapshot import open_snapshot, reading
from pbg_tasks.prepare.split import NAMES, settle
from pbg_tasks.prepare.sql import DUCKDB, table
from pbg_tasks.prepare.sql import edges as text
from pbg_tasks.prepare.sql.split import TRAIN
from pbg_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa
    from pydantic import JsonValue

    from pbg_tasks.config import GraphSpec, SnapshotFile
    from pbg_tasks.prepare.delta import Delta
    from pbg_tasks.prepare.features import Bags

BATCH_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketReport:
    """Report on the written buckets.

    Attributes:
        edges: by split, and the snapshot's total; ``dropped`` are further edges of held-out pairs, such as inverses.
        matrix: training edges of each bucket, rows are left-hand partitions.
        held_out_pairs: pairs of entities held out.
        returned_pairs: candidates that went back to training in this snapshot.
        untrained_entities: entities of the snapshot without a training edge.
        delta: edges to train by the reason why they are; None where all are.
        delta_matrix: edges to train of each bucket; None where all are.
    """

    edges: dict[str, int]
    matrix: list[list[int]]
    held_out_pairs: int
    returned_pairs: int
    untrained_entities: int
    delta: dict[str, int] | None = None
    delta_matrix: list[list[int]] | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the report as plain JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def write_buckets(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    *,
    entities: Path,
    returned_previous: Path | None,
    out: Path,
    feature_separator: str = ",",
    splits: Collection[str] = NAMES,
    delta: Delta[Path] | None = None,
) -> BucketReport:
    """Split the snapshot's edges, and write every bucket, empty ones too.

    An end whose type is not partitioned is in partition 0; its edges are spread over that side's buckets by hash.

    Args:
        connection: for the work.
        spec: of the graph.
        files: of the snapshot, validated before.
        entities: directory with the ids and relation names.
        returned_previous: pairs that may not be held out, from the release this run continues.
        out: directory for the files.
        feature_separator: between two features in the column of a featurized type.
        splits: those of which empty buckets are written, too.
        delta: chooses the training edges that are also written to the folder ``DELTA``; None: there is none.

    Raises:
        FormatError: a file of ``entities`` or ``returned_previous`` is missing or damaged.
    """
    open_snapshot(connection, spec, files)
    names = read_relation_names(entities) if spec.model.relations_from_data else None
    matches = make_relations(connection, spec, names)
    with reading(files):
        bags = make_bags(connection, spec, matches, entities, feature_separator)
    _make_ends(connection, spec, entities)
    with phase(connection, "edges to ids"), reading(files):
        _make_edges(connection, spec, matches, marked=delta is not None)
        settled = settle(connection, spec, returned_previous, out)
        placed = text.placed(DUCKDB, spec, marked=delta is not None)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE placed AS {placed}")
    counts, dropped = bucket_counts(spec, connection.execute(text.sizes("placed")).fetchall(), len(NAMES))
    _write_grid(connection, spec, out, bags, counts, splits)
    why, chosen = None, None
    if delta is not None:
        why = deltas.choose(connection, delta)
        chosen, _ = bucket_counts(spec, connection.execute(text.sizes("chosen")).fetchall(), 1)
        _write_grid(connection, spec, out, bags, chosen, (DELTA,), table="chosen", names=(DELTA,))
    edges = dict(zip(NAMES, counts.sum(axis=(1, 2)).tolist(), strict=True))
    return BucketReport(
        edges | {"total": int(counts.sum()) + dropped, "dropped": dropped},
        counts[TRAIN].tolist(),
        **settled,
        untrained_entities=_untrained(connection) if text.draws(spec) else 0,
        delta=why,
        delta_matrix=None if chosen is None else chosen[0].tolist(),
    )


def _make_ends(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, entities: Path) -> None:
    """Make the table ``ends``; see ``text.ends``."""

    def ends_of(index: int, entity: str) -> str:
        if spec.model.entities[entity].featurized:
            return text.bag_ends(DUCKDB, index, entity)
        return text.entity_ends(DUCKDB, index, entity, table(entities / entity_ids_file_name(entity)))

    types = [ends_of(index, entity) for index, entity in enumerate(spec.model.entities)]
    with loading(entities):
        connection.execute(f"CREATE OR REPLACE TEMP TABLE ends AS {text.ends(DUCKDB, types)}")


def _make_edges(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, matches: str, *, marked: bool) -> None:
    """Make ``edges``; see ``text.edges``.

    Where nothing is drawn, it is a view, so that only the columns in use are computed.
    """
    kind = "TABLE" if text.draws(spec) else "VIEW"
    drawn = text.drawn(DUCKDB, spec, matches, marked=marked)
    query = text.edges(DUCKDB, spec, f"({drawn})", marked=marked)
    connection.execute(f"CREATE OR REPLACE TEMP {kind} edges AS {query}")


def bucket_counts(spec: GraphSpec, rows: Iterable[tuple[Any, ...]], folders: int) -> tuple[np.ndarray, int]:
    """Return the edges of every folder's buckets, and those dropped.

    The counts are int64 (folders, rows, columns).

    Args:
        spec: of the graph.
        rows: of ``text.sizes``.
        folders: their number.
    """
    found = dict(rows)
    dropped = int(found.pop(None, 0))
    counts = np.zeros((folders, spec.model.partitions("lhs"), spec.model.partitions("rhs")), np.int64)
    for bucket, count in found.items():
        counts.flat[bucket] = count
    return counts, dropped


def _write_grid(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    out: Path,
    bags: Bags | None,
    counts: np.ndarray,
    splits: Collection[str],
    *,
    table: str = "placed",
    names: Sequence[str] = NAMES,
) -> None:
    weighted = spec.columns.weight is not None
    with phase(connection, "sort"):
        edges = _SortedEdges(connection, spec, table)
    empty: Path | None = None
    with Progress("write buckets", total=int(counts.sum())) as progress:
        for (split, lhs, rhs), count in np.ndenumerate(counts):
            if not count and names[split] not in splits:
                continue
            path = out / names[split] / edge_file_name(lhs, rhs)
            path.parent.mkdir(exist_ok=True)
            if not count and empty is not None:  # most of a fine grid is empty, and HDF5 is slow
                copied(empty, path)
                continue
            with _writer(path, int(count), bags, weighted=weighted, checksums=spec.model.checksums) as writer:
                for piece in edges.take(int(count)):
                    writer.append(piece)
                    progress.advance(len(piece))
            if not count:
                empty = path


def _writer(
    path: Path, count: int, bags: Bags | None, *, weighted: bool, checksums: bool
) -> EdgeFileWriter | FeaturizedBucketWriter:
    if bags is None:
        return EdgeFileWriter(path, count, weighted=weighted, checksums=checksums)
    return FeaturizedBucketWriter(path, bags, weighted=weighted, checksums=checksums)


class _SortedEdges:
    """Edges of a table like ``placed``, sorted, as a stream.

    See ``text.files`` and ``text.order``.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, spec: GraphSpec, table: str) -> None:
        columns, order = ", ".join(text.file_columns(spec)), ", ".join(text.order(DUCKDB, spec))
        rows = text.files(DUCKDB, spec, table, "bucket", "hash")
        edges = connection.sql(f"SELECT {columns} FROM ({rows}) ORDER BY {order}")
        self._batches = batches(edges, BATCH_ROWS)
        self._batch: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[EdgeList]:
        """Yield the next ``count`` edges in pieces."""
        while count:
            batch = self._batch or next(self._batches)
            taken = batch.slice(0, count)
            self._batch = batch.slice(len(taken)) if len(taken) < len(batch) else None
            count -= len(taken)
            lhs, rhs, rel = (numbers(taken.column(name), np.int64) for name in ("lhs", "rhs", "rel"))
            weighted = "weight" in taken.schema.names
            yield EdgeList(lhs, rhs, rel, numbers(taken.column("weight"), np.float32) if weighted else None)


def _untrained(connection: duckdb.DuckDBPyConnection) -> int:
    (row,) = connection.execute(text.UNTRAINED).fetchall()
    return int(row[0])
