"""Edges to buckets: ``{train,valid,test}/edges_{i}_{j}.h5`` of the whole grid, streamed, in a fixed mixed order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.formats.edges import EdgeFileWriter, EdgeList, edge_file_name
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.prepare.connection import loading, phase
from pbg_tasks.prepare.features import FeaturizedBucketWriter, make_bags
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.relations import make_relations
from pbg_tasks.prepare.snapshot import open_snapshot, reading
from pbg_tasks.prepare.split import NAMES, TRAIN, candidate_sql, settle
from pbg_tasks.prepare.sql import md5_head, one_file, quoted
from pbg_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import GraphSpec, SnapshotFile
    from pbg_tasks.prepare.features import Bags

BATCH_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketReport:
    """What was written.

    Attributes:
        edges: by split, and the snapshot's total; ``dropped`` are further edges of held-out pairs, such as inverses.
        matrix: training edges of each bucket, rows are left-hand partitions.
        held_out_pairs: pairs of entities held out.
        returned_pairs: candidates that went back to training in this snapshot.
        untrained_entities: entities of the snapshot without a training edge.
    """

    edges: dict[str, int]
    matrix: list[list[int]]
    held_out_pairs: int
    returned_pairs: int
    untrained_entities: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def write_buckets(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    *,
    entities: Path,
    returned_previous: Path | None,
    out: Path,
    feature_separator: str = ",",
) -> BucketReport:
    """Split the snapshot's edges, and write every bucket of the grid, empty ones too.

    An end whose type is not partitioned lies in partition 0; its edges are spread over that side's buckets by hash.

    Args:
        connection: for the work.
        spec: of the graph.
        files: of the snapshot, validated before.
        entities: directory with the ids and relation names.
        returned_previous: pairs that may not be held out, from the release this run continues.
        out: directory for the files.
        feature_separator: between two features in the column of a featurized type.

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
        _make_edges(connection, spec, matches)
    with phase(connection, "split"):
        settled = settle(connection, returned_previous, out)
        _make_placed(connection, spec)
    written = _write_grid(connection, spec, out, bags)
    total, dropped = _totals(connection)
    edges = {name: sum(map(sum, written[name])) for name in NAMES} | {"total": total, "dropped": dropped}
    return BucketReport(edges, written["train"], **settled, untrained_entities=_untrained(connection))


def _make_ends(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, entities: Path) -> None:
    """Make ``ends(type, id, name)``; an id packs type, partition (16 bits) and offset (40 bits) into one number.

    Of a featurized type an end is a bag; its number takes the offset's place.
    """

    def ends_of(index: int, entity: str) -> str:
        kind = f"SELECT {quoted(entity)} AS type, {index}::UBIGINT << 56"
        if spec.model.entities[entity].featurized:
            return f"{kind} | number::UBIGINT AS id, cell AS name FROM bags WHERE bags.type = {quoted(entity)}"
        file = one_file(entities / entity_ids_file_name(entity))
        return f'{kind} | (partition::UBIGINT << 40) | "offset"::UBIGINT AS id, name FROM read_parquet({file})'

    selects = " UNION ALL ".join(ends_of(index, entity) for index, entity in enumerate(spec.model.entities))
    with loading(entities):
        connection.execute(f"CREATE OR REPLACE TEMP VIEW ends AS {selects}")


def _make_edges(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, matches: str) -> None:
    """Make ``edges``: ids, relation, weight, the drawn split, and a hash that orders and spreads.

    Only candidates keep their keys and their relation's name: text would be most of the table.
    """
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE edges AS
        WITH keyed AS (
            SELECT relations.id AS rel, relations.lhs_type, relations.rhs_type, raw.lhs, raw.rhs,
                coalesce(raw.rel, '') AS rel_name, CAST(raw.weight AS FLOAT) AS weight,
                relations.lhs_type || chr(30) || raw.lhs AS lhs_key, relations.rhs_type || chr(30) || raw.rhs AS rhs_key
            FROM raw JOIN relations ON {matches}
        ),
        drawn AS (SELECT *, {candidate_sql(spec.split)} AS candidate FROM keyed)
        SELECT drawn.rel, weight, l.id AS lhs_id, r.id AS rhs_id, candidate,
            if(candidate <> {TRAIN}, rel_name, NULL) AS rel_name,
            if(candidate <> {TRAIN}, lhs_key, NULL) AS lhs_key,
            if(candidate <> {TRAIN}, rhs_key, NULL) AS rhs_key,
            {md5_head("lhs_key || chr(31) || rel_name || chr(31) || rhs_key")} AS hash
        FROM drawn
            JOIN ends l ON l.type = drawn.lhs_type AND l.name = drawn.lhs
            JOIN ends r ON r.type = drawn.rhs_type AND r.name = drawn.rhs
        """
    )


def _make_placed(connection: duckdb.DuckDBPyConnection, spec: GraphSpec) -> None:
    """Make ``placed``: each edge's split (null: dropped) and bucket."""
    partitioned = [index for index, entity in enumerate(spec.model.entities.values()) if entity.num_partitions > 1]
    listed = ", ".join(map(str, partitioned)) or "-1"

    def bucket(side: str, shift: int) -> str:
        count = spec.model.partitions("lhs" if side == "lhs" else "rhs")
        return (
            f"if(({side}_id >> 56) IN ({listed}), (({side}_id >> 40) & 65535)::INTEGER, "
            f"((hash >> {shift}) % {count})::INTEGER)"
        )

    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE placed AS
        WITH settled AS (
            SELECT *, {TRAIN} AS split FROM edges WHERE candidate = {TRAIN}
            UNION ALL
            SELECT edges.*,
                CASE WHEN least_id IS NULL THEN {TRAIN}
                     WHEN row_number() OVER (PARTITION BY least_id, greatest_id
                                             ORDER BY rel_name, lhs_key, rhs_key, weight) = 1 THEN candidate END
            FROM edges LEFT JOIN held_out ON least_id = least(lhs_id, rhs_id) AND greatest_id = greatest(lhs_id, rhs_id)
            WHERE candidate <> {TRAIN}
        )
        SELECT rel, weight, lhs_id, rhs_id, hash, split,
            {bucket("lhs", 0)} AS lhs_bucket, {bucket("rhs", 32)} AS rhs_bucket
        FROM settled
        """
    )


def _write_grid(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, out: Path, bags: Bags | None
) -> dict[str, list[list[int]]]:
    lhs_count, rhs_count = spec.model.partitions("lhs"), spec.model.partitions("rhs")
    weighted = spec.columns.weight is not None
    counts = {name: [[0] * rhs_count for _ in range(lhs_count)] for name in NAMES}
    (row,) = connection.execute("SELECT count(*) FROM placed WHERE split IS NOT NULL").fetchall()
    pieces = _pieces(connection, spec, weighted=weighted)
    piece = next(pieces, None)
    with Progress("write buckets", total=int(row[0])) as progress:
        for split, name in enumerate(NAMES):
            (out / name).mkdir()
            for lhs in range(lhs_count):
                for rhs in range(rhs_count):
                    with _writer(out / name / edge_file_name(lhs, rhs), bags, weighted=weighted) as writer:
                        while piece is not None and piece[0] == (split, lhs, rhs):
                            writer.append(piece[1])
                            progress.advance(len(piece[1]))
                            piece = next(pieces, None)
                    counts[name][lhs][rhs] = writer.count
    return counts


def _writer(path: Path, bags: Bags | None, *, weighted: bool) -> EdgeFileWriter | FeaturizedBucketWriter:
    if bags is None:
        return EdgeFileWriter(path, weighted=weighted)
    return FeaturizedBucketWriter(path, bags, weighted=weighted)


def _pieces(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, *, weighted: bool
) -> Iterator[tuple[tuple[int, int, int], EdgeList]]:
    """Stream the edges sorted by split, bucket and hash, cut where the bucket changes.

    Instead of an offset, a bag has -1 minus its number.
    """
    bagged = [index for index, entity in enumerate(spec.model.entities.values()) if entity.featurized]
    listed = ", ".join(map(str, bagged)) or "-1"

    def end(side: str) -> str:
        offset = f"({side}_id & {(1 << 40) - 1})::BIGINT"
        return f"if(({side}_id >> 56) IN ({listed}), -1 - {offset}, {offset})"

    reader = connection.sql(
        f"""
        SELECT split::BIGINT AS split, lhs_bucket::BIGINT AS lhs_bucket, rhs_bucket::BIGINT AS rhs_bucket,
            {end("lhs")} AS lhs, {end("rhs")} AS rhs, rel, weight
        FROM placed WHERE split IS NOT NULL
        ORDER BY split, lhs_bucket, rhs_bucket, hash, lhs_id, rhs_id, rel, weight
        """
    ).to_arrow_reader(BATCH_ROWS)
    for batch in reader:
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
        place = np.stack([columns["split"], columns["lhs_bucket"], columns["rhs_bucket"]])
        cuts = np.flatnonzero((place[:, 1:] != place[:, :-1]).any(axis=0)) + 1
        for start, stop in zip([0, *cuts], [*cuts, len(batch)], strict=True):
            weight = columns["weight"][start:stop] if weighted else None
            lhs_ids, rhs_ids, rel = (columns[name][start:stop] for name in ("lhs", "rhs", "rel"))
            piece = EdgeList(lhs_ids, rhs_ids, rel, weight)
            split, lhs, rhs = (int(value) for value in place[:, start])
            yield (split, lhs, rhs), piece


def _totals(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    (row,) = connection.execute("SELECT count(*), count(*) FILTER (split IS NULL) FROM placed").fetchall()
    return int(row[0]), int(row[1])


def _untrained(connection: duckdb.DuckDBPyConnection) -> int:
    (row,) = connection.execute(
        f"""
        SELECT count(*) FROM (
            SELECT id FROM (SELECT lhs_id AS id, split FROM placed UNION ALL SELECT rhs_id, split FROM placed)
            GROUP BY id HAVING count(*) FILTER (split = {TRAIN}) = 0)
        """
    ).fetchall()
    return int(row[0])
