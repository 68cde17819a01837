"""Known end of an edge as one more negative (``self_negatives``, not PBG's).

A question (h, r, ?) names h, and a model that never has h as a negative may score it above every other answer. Loops
are true edges, so they have no such negative. Neither have the edges of a relation with a share of loops
(``LOOP_SHARE``): there h is an answer like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.training.schedule import grid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from pbg_tasks.config import ConfigSchema, ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.families import Families
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.batching import Batch
    from pbg_tasks.training.schedule import Bucket

LOOP_SHARE = 0.01
"""Share of a relation's edges that are loops.

From this share on, the known end is an answer like any other.
"""
_READ_EDGES = 1 << 20  # read at a time: 24 MiB


class SelfNegatives:
    """Edges whose known end is a negative.

    Args:
        config: the model.
        families: families of the relations.
        loops: int64, ids of the relations that have loops; None: unknown, treated as none.
        device: device of the batches.
    """

    def __init__(self, config: ModelConfig, families: Families, loops: np.ndarray | None, device: torch.device) -> None:
        self._config = config
        loopless = np.ones(len(families), bool)
        if loops is not None:
            loopless[loops] = False
        # The relations of a family are stacked in ascending order.
        self._loopless = {
            first: torch.from_numpy(loopless[families.first == first]).to(device) for first in families.sizes
        }

    def of(self, batch: Batch, tables: Mapping[Side, Table]) -> Tensor | None:
        """Return whether each edge of a batch has such a negative.

        Args:
            batch: the edges.
            tables: tables of both sides; the same object where both are the same partition.

        Returns:
            bool (B,); None where the relation has none.
        """
        if not self._config.has_self_negatives(self._config.relations[batch.relation]):
            return None
        loopless = self._loopless[batch.family]
        found_B = loopless.expand(len(batch)) if batch.rel is None else loopless.index_select(0, batch.rel)
        if tables["lhs"] is not tables["rhs"]:
            return found_B  # equal offsets are different entities
        return found_B & (batch.lhs.rows_M != batch.rhs.rows_M)


def relations_with_loops(config: ConfigSchema, families: Families, edges: EdgeFiles) -> np.ndarray:
    """Find relations with a share of loops of ``LOOP_SHARE`` or more.

    A smaller share is an exception: of 29,715 edges between derived forms in WN18RR 7 are loops, and every other
    question about this relation is better answered without the known end. Only buckets that can contain loops are read;
    the other buckets of a partitioned type are taken to be like them. Edges of relations that do not exist are left to
    the check of a bucket.

    Returns:
        int64, their ids, ascending.

    Raises:
        FormatError: a bucket's file is damaged.
    """
    same, single = np.zeros((2, len(config.relations)), bool)
    partitions = np.ones(len(config.relations), np.int64)
    for index, relation in enumerate(config.relations):
        entity = config.entities[relation.lhs]
        same[index] = relation.lhs == relation.rhs and not entity.featurized
        single[index] = same[index] and entity.num_partitions == 1
        partitions[index] = entity.num_partitions
    # The edges of a type with one partition are spread over all buckets.
    on_diagonal, elsewhere = same[families.first], single[families.first]
    loops, looked_at = np.zeros((2, len(families)), np.int64)
    for bucket in grid(config.partitions("lhs"), config.partitions("rhs")):
        possible = on_diagonal if bucket.lhs == bucket.rhs else elsewhere
        if possible.any():
            for read in _edge_chunks(config, edges, bucket):
                fine = np.flatnonzero((read.rel >= 0) & (read.rel < len(families)))
                fine = fine[possible[read.rel[fine]]]
                looked_at += np.bincount(read.rel[fine], minlength=len(families))
                loops += np.bincount(read.rel[fine[read.lhs[fine] == read.rhs[fine]]], minlength=len(families))
    # All loops of a partitioned type are on the diagonal, and of its other edges one in as many as it has partitions.
    total = loops + (looked_at - loops) * partitions[families.first]
    return np.flatnonzero((loops > 0) & (loops >= LOOP_SHARE * total))


def _edge_chunks(config: ConfigSchema, edges: EdgeFiles, bucket: Bucket) -> Iterator[EdgeList]:
    """Yield the edges of a bucket of all edge paths in parts."""
    for path in range(len(config.edge_paths)):
        count = edges.count(path, bucket)
        for start in range(0, count, _READ_EDGES):
            yield edges.read(path, bucket, start, min(start + _READ_EDGES, count))
