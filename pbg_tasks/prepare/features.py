"""Featurized entities: cells with features become bags of features' rows.

On the way to the buckets a bag is one number, as an entity is, so that only its cell is joined and sorted. Its features
take the number's place when a bucket is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.formats.edges import EdgeList, Features, joined_columns, write_edges
from pbg_tasks.prepare.connection import batches, loading, phase
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.sql import DUCKDB, quoted, table

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import GraphSpec

BATCH_ROWS = 1 << 20


class Bags:
    """Bags of an edge list, with 8 bytes for each feature.

    They are in memory.

    Args:
        spec: defines the featurized types, and the sides of the edges on which they occur.
        features: of each bag, by number.
    """

    def __init__(self, spec: GraphSpec, features: Features) -> None:
        relations, entities = spec.model.relations, spec.model.entities
        self._lhs = any(entities[relation.lhs].featurized for relation in relations)
        self._rhs = any(entities[relation.rhs].featurized for relation in relations)
        # The last bag is empty: it stands for the ends that are no bags.
        self._features = Features(np.append(features.offsets, len(features.data)), features.data)

    def unpack(self, edges: EdgeList) -> EdgeList:
        """Replace bags by their features.

        In ``edges`` a bag is -1 minus its number.
        """
        lhs, lhs_features = self._end(edges.lhs) if self._lhs else (edges.lhs, None)
        rhs, rhs_features = self._end(edges.rhs) if self._rhs else (edges.rhs, None)
        return EdgeList(lhs, rhs, edges.rel, edges.weight, lhs_features, rhs_features)

    def _end(self, ids: np.ndarray) -> tuple[np.ndarray, Features]:
        numbers = np.where(ids < 0, -1 - ids, len(self._features) - 1)
        return np.maximum(ids, -1), self._features.select(numbers)


def make_bags(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, matches: str, ids: Path, separator: str
) -> Bags | None:
    """Make the table ``bags(type, cell, number, features)``.

    It has the cells with a known feature.

    Args:
        connection: holds ``raw`` and ``relations``; the table is made here.
        spec: of the graph.
        matches: SQL condition that joins the two.
        ids: directory with the features' ids.
        separator: between two features of a cell.

    Returns:
        The same in memory; None when no type is featurized.

    Raises:
        FormatError: a file of ``ids`` is missing or damaged.
    """
    types = [name for name, entity in spec.model.entities.items() if entity.featurized]
    if not types:
        return None
    cells = " UNION ".join(
        f"SELECT relations.{side}_type AS type, raw.{side} AS cell FROM raw JOIN relations ON {matches} "
        f"WHERE relations.{side}_type IN ({', '.join(map(quoted, types))})"
        for side in ("lhs", "rhs")
    )
    known = " UNION ALL ".join(
        f'SELECT {quoted(name)} AS type, name, "offset" FROM {table(ids / entity_ids_file_name(name))}'
        for name in types
    )
    with loading(ids):
        connection.execute(f"CREATE OR REPLACE TEMP TABLE features AS {known}")
    with phase(connection, "bags of features"):
        connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE bags AS
            SELECT type, cell, row_number() OVER (ORDER BY type, cell) - 1 AS number,
                list("offset" ORDER BY "offset") AS features
            FROM (SELECT type, cell, unnest({DUCKDB.features("cell", separator)}) AS name FROM ({cells}))
                JOIN features USING (type, name)
            GROUP BY type, cell
            """
        )
    return Bags(spec, _fetch(connection))


def _fetch(connection: duckdb.DuckDBPyConnection) -> Features:
    counts, data = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
    for batch in batches(connection.sql("SELECT features FROM bags ORDER BY number"), BATCH_ROWS):
        lists = batch.column("features")
        counts.append(lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
        data.append(lists.flatten().to_numpy(zero_copy_only=False))
    return Features(np.cumsum(np.concatenate(counts)), np.concatenate(data))


class FeaturizedBucketWriter:
    """Writer of a bucket whose edges may end in bags.

    The bucket is held in memory, and appears only when all of it is written.

    Args:
        path: of the file.
        bags: to which ends below 0 refer.
        weighted: whether there is a ``weight`` dataset.
        checksums: as in ``write_edges``.
    """

    def __init__(self, path: Path, bags: Bags, *, weighted: bool, checksums: bool = False) -> None:
        self._path, self._bags = path, bags
        self._weighted, self._checksums = weighted, checksums
        nothing = np.empty(0, np.int64)
        self._pieces = [EdgeList(nothing, nothing, nothing)]

    def append(self, edges: EdgeList) -> None:
        """Add edges after those before."""
        self._pieces.append(edges)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        lhs, rhs, rel = joined_columns(self._pieces, ("lhs", "rhs", "rel"))
        weights = [piece.weight for piece in self._pieces if piece.weight is not None]
        weight = np.concatenate([np.empty(0, np.float32), *weights]) if self._weighted else None
        write_edges(self._path, self._bags.unpack(EdgeList(lhs, rhs, rel, weight)), checksums=self._checksums)
