"""Starting vectors of a warm night's new entities.

They follow from the edges of these entities. An edge predicts the vector of its new end: the vector of its known end,
to which the relation's operator is applied (or, where the operator works on the new end, its inverse). A new entity
starts in the direction of the weighted mean of these predictions. It gets the median length of its type's known
embeddings and a quarter of their median optimizer sum, so that the first steps move it twice as far as they move known
entities. An entity with edges to other new entities only is placed in a second round. An entity with neither starts at
random.

Buckets are visited as in training, with as many partitions in memory. The sums of new rows are kept in scratch files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.formats.npy import new_array
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import OTHER_SIDE, SIDES, global_path
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.progress import Progress
from pbg_tasks.training.data.buffer import PartitionBuffer
from pbg_tasks.training.data.partition_files import PartitionFiles, Stamp
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.schedule import bucket_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.buffer import PartitionSource
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.schedule import Bucket

    Tables = Mapping[str, Table]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New rows of one partition: those from ``known`` on.

    Attributes:
        known: number of rows that the release before has.
        rows_ND: float32, starting values, on disk.
        sums_N: float32, their optimizer sums.
        predicted_ND: float32, weighted sum of the edges' predictions, on disk.
        weight_N: float64, sum of the edges' weights.
        placed_N: whether an earlier round placed the row.
    """

    known: int
    rows_ND: np.ndarray
    sums_N: np.ndarray
    predicted_ND: np.ndarray
    weight_N: np.ndarray
    placed_N: np.ndarray

    @classmethod
    def of(cls, table: Table, known: int, path: Path) -> Arrivals:
        """Copy a partition's new rows, which have random values.

        Raises:
            ResourceError: the disk has no room for them.
        """
        rows_ND = table.embeddings[known:]
        count = len(rows_ND)
        on_disk = [new_array(path.with_suffix(kind), tuple(rows_ND.shape)) for kind in (".rows.npy", ".predicted.npy")]
        for part in _blocks(*rows_ND.shape):
            on_disk[0][part] = rows_ND[part].float().numpy()
        return cls(
            known, on_disk[0], np.zeros(count, np.float32), on_disk[1], np.zeros(count), np.zeros(count, dtype=bool)
        )

    def add(self, row_M: torch.Tensor, predicted_MD: torch.Tensor, weight_M: torch.Tensor) -> None:
        """Add M edges' predictions for their new ends ``row_M`` (from 0)."""
        order_M = torch.argsort(row_M, stable=True)
        present, counts = torch.unique_consecutive(row_M[order_M], return_counts=True)
        offsets = torch.cumsum(counts, 0) - counts
        sums = embedding_bag(order_M, predicted_MD, offsets, mode="sum", per_sample_weights=weight_M[order_M])
        self.predicted_ND[present.numpy()] += sums.numpy()
        np.add.at(self.weight_N, row_M.numpy(), weight_M.numpy())


NOTHING_TRAINED = IterationInfo(0, 0, 1, 0, "", 1, 0)
_ROUNDS = 2
_BLOCK_VALUES = 1 << 20  # numbers worked on at once: 4 MiB of float32, as the process keeps what such blocks took
_EDGES_READ = 1 << 22
_LEARNED = 0.25  # share of the known rows' optimizer sums: measured, see docs/warm-start.md
_SAMPLED = 1 << 20  # rows of a type from which its median is taken


@dataclass(frozen=True, slots=True)
class Usual:
    """Medians over the known rows of a type.

    Attributes:
        length: median length of an embedding as it is looked up, without its bias.
        bias: median of dimension 0, where that is a bias.
        row_sum: median optimizer sum.
    """

    length: float
    bias: float
    row_sum: float


class Newcomers:
    """Placement of the new rows of a night's partitions.

    Args:
        config: of the training.
        relation_count: relations in the data.
        params: shared parameters at the start of the training, by PBG's path.
        known: number of rows that the release before has, by partition.
        source: the partitions as the training would start without this placement.
        edges: training edges.
        scratch: an empty local directory, which must exist as long as the instance is used.
    """

    def __init__(
        self,
        config: ConfigSchema,
        *,
        relation_count: int,
        params: Mapping[str, np.ndarray],
        known: Mapping[PartitionKey, int],
        source: PartitionSource,
        edges: EdgeFiles,
        scratch: Path,
    ) -> None:
        self._config, self._params = config, params
        self._known, self._edges = known, edges
        self._families = Families(config, relation_count)
        self._weights = np.array([relation.weight for relation in config.relations], np.float32)
        self._source, self._scratch = source, scratch
        self._arrivals: dict[PartitionKey, Arrivals] = {}
        self._samples: dict[PartitionKey, np.ndarray] = {}  # (n, 3): length, bias, row sum
        self._skipped = int(config.bias)  # leading dimensions that are no part of the direction

    def table(self, key: PartitionKey) -> Table:
        """Return a partition with the present values of its new rows.

        It is called by another thread.
        """
        table = self._source.table(key)
        arrivals = self._arrivals.get(key)
        if arrivals is not None:
            rows_ND = table.embeddings[arrivals.known :]
            for part in _blocks(*rows_ND.shape):
                rows_ND[part] = torch.from_numpy(np.array(arrivals.rows_ND[part]))
        return table

    def place(self) -> dict[str, dict[str, int]]:
        """Place the new rows.

        Returns:
            By entity type that has new rows: ``new``, their number; ``by_known`` and ``by_new``, the numbers that were
                placed by edges to known entities and to new ones; ``random``, the number of the others.
        """
        placed = []
        for number in range(_ROUNDS):
            self._collect(first=not number)
            placed.append(self._settle())
            if all(arrivals.placed_N.all() for arrivals in self._arrivals.values()):
                break
        report = {}
        for entity in sorted({key.entity for key, arrivals in self._arrivals.items() if len(arrivals.sums_N)}):
            new = sum(len(arrivals.sums_N) for key, arrivals in self._arrivals.items() if key.entity == entity)
            known, others = (counts.get(entity, 0) for counts in [*placed, {}][:_ROUNDS])
            report[entity] = {"new": new, "by_known": known, "by_new": others, "random": new - known - others}
        return report

    def write(self, directory: Path) -> None:
        """Write the new rows of each partition that has any.

        Each file has version 0 and contains these rows only.
        """
        for key, arrivals in self._arrivals.items():
            if len(arrivals.sums_N):
                path = directory / embeddings_file_name(*key, 0)
                write_embeddings(
                    path,
                    arrivals.rows_ND,
                    arrivals.sums_N,
                    lr=self._config.lr,
                    iteration=NOTHING_TRAINED,
                    config=self._config,
                )

    def _collect(self, *, first: bool) -> None:
        """Add all edges' predictions for new rows without a place."""
        config = self._config
        order = bucket_order("inside_out", config.partitions("lhs"), config.partitions("rhs"), seed="")
        paths = range(len(config.edge_paths))
        total = sum(self._edges.count(path, bucket) for path in paths for bucket in order)
        buffer = PartitionBuffer(config, self, PartitionFiles(config, self._scratch), keep=False)
        buffer.begin(order, [], Stamp(0, NOTHING_TRAINED))
        with buffer.io, Progress("new entities", total=total) as progress:
            for bucket in order:
                lhs, rhs = buffer.swap_to(bucket)
                if first:
                    self._meet(bucket, lhs, rhs)
                for path in paths:
                    count = self._edges.count(path, bucket)
                    for start in range(0, count, _EDGES_READ):
                        edges = self._edges.read(path, bucket, start, min(start + _EDGES_READ, count))
                        self._collect_bucket(edges, bucket, {"lhs": lhs, "rhs": rhs})
                        progress.advance(len(edges))
                del lhs, rhs  # given back, so that the buffer may evict them

    def _key(self, entity: str, index: int) -> PartitionKey:
        return PartitionKey(entity, index if self._config.entities[entity].num_partitions > 1 else 0)

    def _meet(self, bucket: Bucket, lhs: Tables, rhs: Tables) -> None:
        """Register partitions that are read for the first time."""
        for tables, index in ((lhs, bucket.lhs), (rhs, bucket.rhs)):
            for entity, table in tables.items():
                key = self._key(entity, index)
                if key not in self._arrivals:
                    known = self._known[key]
                    self._samples[key] = self._sample(entity, table, known)
                    path = self._scratch / embeddings_file_name(*key, 0)
                    self._arrivals[key] = Arrivals.of(table, known, path)

    def _sample(self, entity: str, table: Table, known: int) -> np.ndarray:
        limit = _SAMPLED // self._config.entities[entity].num_partitions
        rows = torch.arange(0, known, max(1, -(-known // limit)))
        parts = _blocks(max(1, len(rows)), table.embeddings.shape[1])
        return np.concatenate([self._seen(entity, table, rows[part]) for part in parts])

    def _seen(self, entity: str, table: Table, rows: torch.Tensor) -> np.ndarray:
        """Return length, bias and sum of known rows, as looked up."""
        found_ND = table.embeddings[rows].float()
        if self._config.max_norm is not None and self._config.entities[entity].trainable:
            found_ND = torch.renorm(found_ND, 2, 0, self._config.max_norm)
        seen_ND = found_ND + self._global(entity)
        lengths = seen_ND[:, self._skipped :].norm(dim=1)
        return torch.stack((lengths, seen_ND[:, 0], table.row_sums[rows]), dim=1).numpy()

    def _global(self, entity: str) -> torch.Tensor:
        if not self._config.global_emb:
            return torch.zeros(self._config.entity_dimension(entity))
        return torch.from_numpy(self._params[global_path(entity)])

    def _collect_bucket(self, edges: EdgeList, bucket: Bucket, tables: Mapping[Side, Tables]) -> None:
        first = self._families.first[edges.rel]
        for family in np.unique(first).tolist():
            relation = self._config.relations[family]
            if any(self._config.entities[entity].featurized for entity in (relation.lhs, relation.rhs)):
                continue  # an entity with features has no row of its own
            some = edges.select(first == family)
            scorer = RelationScorer(self._config, family, self._params)
            for side in SIDES:
                self._collect_side(scorer, some, side, bucket, tables)

    def _collect_side(
        self, scorer: RelationScorer, edges: EdgeList, side: Side, bucket: Bucket, tables: Mapping[Side, Tables]
    ) -> None:
        """Add the predictions of one family's edges for new ends on ``side``."""
        other = OTHER_SIDE[side]
        relation = self._config.relations[int(self._families.first[edges.rel[0]])]
        index = {"lhs": bucket.lhs, "rhs": bucket.rhs}
        arrivals = self._arrivals[self._key(getattr(relation, side), index[side])]
        there = self._arrivals[self._key(getattr(relation, other), index[other])]
        row = getattr(edges, side) - arrivals.known
        chosen = np.flatnonzero(row >= 0)
        chosen = chosen[~arrivals.placed_N[row[chosen]]]
        from_new = getattr(edges, other)[chosen] - there.known
        settled = from_new < 0
        settled[~settled] = there.placed_N[from_new[~settled]]
        chosen = chosen[settled]
        table = tables[other][getattr(relation, other)].embeddings
        for part in _blocks(len(chosen), table.shape[1]):
            block = chosen[part]
            rel = edges.rel[block]
            predicted = scorer.wanted(
                table[torch.from_numpy(getattr(edges, other)[block])].float(),
                torch.from_numpy(self._families.row[rel]),
                predict=side,
            )
            weight = self._weights[np.zeros_like(rel) if self._config.relations_from_data else rel]
            if edges.weight is not None:
                weight *= edges.weight[block]
            arrivals.add(torch.from_numpy(row[block]), predicted, torch.from_numpy(weight))

    def _settle(self) -> dict[str, int]:
        """Place the rows that edges predicted.

        Returns:
            Number of placed rows by entity type.
        """
        placed: dict[str, int] = {}
        entities = {key.entity for key in self._arrivals}
        usual = {entity: self._usual(entity) for entity in entities}
        for key, arrivals in self._arrivals.items():
            rows = np.flatnonzero((arrivals.weight_N > 0) & ~arrivals.placed_N)
            for part in _blocks(len(rows), arrivals.rows_ND.shape[1]):
                placed[key.entity] = placed.get(key.entity, 0) + self._settle_rows(
                    key.entity, arrivals, rows[part], usual[key.entity]
                )
        return placed

    def _settle_rows(self, entity: str, arrivals: Arrivals, rows: np.ndarray, usual: Usual) -> int:
        mean = arrivals.predicted_ND[rows] / arrivals.weight_N[rows, np.newaxis].astype(np.float32)
        length = np.linalg.norm(mean[:, self._skipped :], axis=1, keepdims=True)
        directed = np.flatnonzero(length[:, 0] > 0)  # edges may cancel each other out, or a type has no known row yet
        if usual.length <= 0:
            return 0
        rows, mean = rows[directed], mean[directed] * (usual.length / length[directed])
        if self._skipped:
            mean[:, 0] = usual.bias
        arrivals.rows_ND[rows] = mean - self._global(entity).numpy()
        arrivals.sums_N[rows] = _LEARNED * usual.row_sum
        arrivals.placed_N[rows] = True
        return len(rows)

    def _usual(self, entity: str) -> Usual:
        found = np.concatenate([sample for key, sample in self._samples.items() if key.entity == entity])
        return Usual(*(np.median(found, axis=0).tolist() if len(found) else (0.0, 0.0, 0.0)))


def _blocks(count: int, dimension: int) -> Iterator[slice]:
    """Yield the slices of rows that are worked on at once."""
    step = max(1, _BLOCK_VALUES // dimension)
    for start in range(0, count, step):
        yield slice(start, start + step)
