"""Forecast of a snapshot's edges by bucket, before entities have ids.

It is made from a sample. Names are distributed evenly to partitions, by a hash. Edges are not, where a few entities
have many of them: a hub's edges are all in one row or column of the grid. The partition follows from the name, so one
sample serves any number of partitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from pbg_tasks.prepare.connection import phase
from pbg_tasks.prepare.snapshot import reading
from pbg_tasks.prepare.sql import DUCKDB, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from pbg_tasks.config import GraphSpec, ModelConfig, SnapshotFile

SAMPLE = 500_000
"""Approximate number of sampled edges. A snapshot with fewer edges is taken as a whole."""
_SPREAD = 3  # standard deviations by which the largest of equally likely parts may exceed the mean
_UNLIKELY = 6  # standard deviations that chance does not reach in as many buckets as there can be


def largest_of(total: int, share: float) -> int:
    """Return the size of the largest of many equally likely parts.

    Args:
        total: size of all parts.
        share: expected share of each part.
    """
    mean = total * share
    return min(total, math.ceil(mean + (_SPREAD * math.sqrt(mean) if share < 1 else 0)))


@dataclass(frozen=True, slots=True, eq=False)
class BucketSample:
    """Sample of edges, with the facts from which their buckets follow.

    Attributes:
        edges: number of edges of the snapshot.
        names: entity types.
        types: of both ends, as positions in ``names``: integers (sampled edges, 2).
        hashes: of both ends' names, as in ``partition_of``: uint64 (sampled edges, 2).
        spread: hash that spreads edges over a side whose type is not partitioned: uint64 (sampled edges,).
    """

    edges: int
    names: tuple[str, ...]
    types: np.ndarray
    hashes: np.ndarray
    spread: np.ndarray

    def largest(self, config: ModelConfig) -> int:
        """Return the number of edges of the largest bucket.

        It includes held-out edges, and follows a config's partitions. A sample's largest bucket is larger than its
        share by chance alone, the more so the more buckets there are. So the largest row and column decide, and the
        largest bucket only where chance would not make it so large.
        """
        rows, columns = config.partitions("lhs"), config.partitions("rhs")
        if rows * columns == 1:
            return self.edges
        seen = len(self.spread)
        if not seen:
            return largest_of(self.edges, 1 / (rows * columns))
        row, column = self._places(config, "lhs", rows), self._places(config, "rhs", columns)
        most = int(np.bincount(row * columns + column).max())
        if seen == self.edges:
            return most
        likely = np.bincount(row).max() / seen * (np.bincount(column).max() / seen)
        by_chance = likely * seen + _UNLIKELY * math.sqrt(likely * seen)
        return largest_of(self.edges, most / seen if most > by_chance else likely)

    def _places(self, config: ModelConfig, side: Literal["lhs", "rhs"], partitions: int) -> np.ndarray:
        """Return the row or column of each edge, int64."""
        at = ("lhs", "rhs").index(side)
        partitioned = np.array([config.entities[name].num_partitions > 1 for name in self.names])
        spread = self.spread >> np.uint64(32 * at)
        chosen = np.where(partitioned[self.types[:, at]], self.hashes[:, at], spread)
        return (chosen % np.uint64(partitions)).astype(np.int64)


def sample_buckets(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, files: Sequence[SnapshotFile], matches: str, edges: int
) -> BucketSample:
    """Draw a sample from an open snapshot, the same each time.

    Args:
        connection: with ``raw`` and ``relations``.
        spec: of the graph.
        files: of the snapshot.
        matches: SQL condition that joins the two, see ``make_relations``.
        edges: number of edges of the snapshot.

    Raises:
        InputError: a file has changed or is damaged.
    """
    names = tuple(spec.model.entities)
    listed = ", ".join(map(quoted, names))
    with phase(connection, "sample edges"), reading(files):
        found = connection.execute(
            f"""
            SELECT (list_position([{listed}], relations.lhs_type) - 1)::USMALLINT AS lhs_type,
                (list_position([{listed}], relations.rhs_type) - 1)::USMALLINT AS rhs_type,
                {DUCKDB.md5_tail("raw.lhs")} AS lhs, {DUCKDB.md5_tail("raw.rhs")} AS rhs,
                hash(raw.rhs, raw.rel, raw.lhs) AS spread
            FROM raw JOIN relations ON {matches}
            WHERE raw.lhs IS NOT NULL AND raw.rhs IS NOT NULL
                AND hash(raw.lhs, raw.rel, raw.rhs) % {max(1, math.ceil(edges / SAMPLE))} = 0
            """
        ).fetchnumpy()
    return BucketSample(
        edges,
        names,
        np.stack([found["lhs_type"], found["rhs_type"]], axis=1),
        np.stack([found["lhs"], found["rhs"]], axis=1),
        np.asarray(found["spread"], np.uint64),
    )
