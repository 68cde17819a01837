"""Edges of entities unknown to the night before, ranked apart.

The edges are held-out ones, or those of the days to come.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.checkpoint import open_best, open_preserved, preserved_prefix
from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import BucketResult, PartitionResult
from pbg_tasks.evaluate.evaluation import EdgeRanking
from pbg_tasks.evaluate.local_model import LocalModel
from pbg_tasks.formats.edges import EdgeList, edge_file_name, read_edges
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import entity_names_file_name, read_entity_names, read_relation_names
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.training.data.partitions import partition_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.nights.days import Edge

    Buckets = dict[tuple[int, int], EdgeList]

MEMORY = 1 << 30
SPLITS = ("train", "valid", "test")


class Figures(NamedTuple):
    """Filtered MRR of edges, and their numbers.

    Attributes:
        new: of those with a new end; 0 where there are none.
        others: of the others; same.
        edges: number of each.
    """

    new: float
    others: float
    edges: tuple[int, int]

    @property
    def all(self) -> float:
        """MRR of all."""
        return float(np.average([self.new, self.others], weights=self.edges))


def rank_held_out(url: str, epoch: int | None = None) -> Figures:
    """Rank a run's test edges against every entity.

    Args:
        url: of a run that continues another one and has trained; with one entity type.
        epoch: one of those that were preserved; None: the last one.
    """
    with _opened(url, epoch) as trained:
        new, others = trained.divided(trained.splits["test"])
        return Figures(trained.mrr(new), trained.mrr(others), (_count(new), _count(others)))


def rank_coming(url: str, coming: Iterable[Edge]) -> tuple[float, int]:
    """Rank coming edges with an end that is new in a run.

    Both ends are known in the run.

    Args:
        url: as before; the type has one partition.
        coming: edges by name.

    Returns:
        Their filtered MRR, and their number.
    """
    with _opened(url) as trained:
        asked, _ = trained.divided({(0, 0): trained.numbered(coming)})
        return trained.mrr(asked), _count(asked)


def held_out_names(url: str, split: str) -> set[Edge]:
    """Return a run's held-out edges by name; the type has one partition."""
    with _opened(url) as trained:
        return trained.named(split)


def rank_named(url: str, *asked: set[Edge]) -> list[dict[Edge, float]]:
    """Rank held-out edges by name.

    Returns:
        By set, the mean filtered reciprocal rank of both sides of each edge; the mean of all is the MRR.
    """
    with _opened(url) as trained:
        return [trained.reciprocals(sorted(edges)) for edges in asked]


@dataclass(frozen=True, slots=True)
class _Trained:
    """A run's edges and vectors, on local disk.

    Attributes:
        run: with these edges.
        scratch: directory of the files.
        version: of the checkpoint.
        splits: its edges.
    """

    run: RunContext
    scratch: Path
    version: int
    splits: dict[str, Buckets]

    def reciprocals(self, edges: Sequence[Edge]) -> dict[Edge, float]:
        """Return the filtered reciprocal rank of each edge.

        It is the mean of both sides; the run knows all the edges.
        """
        found: list[float] = []
        self.mrr({(0, 0): self.numbered_all(edges)}, report_each=lambda each: found.extend(each.tolist()))
        return dict(zip(edges, found, strict=True))

    def mrr(self, asked: Buckets, report_each: Callable[[np.ndarray], object] | None = None) -> float:
        """Rank edges on both sides, filtered.

        Answers in the run's edges or among those asked are left out.

        Args:
            asked: edges by bucket.
            report_each: see ``EdgeRanking.report``.
        """
        if not _count(asked):
            return 0.0
        config, splits = self.run.config, self.splits
        model = LocalModel(
            config,
            read_model(self.scratch / model_file_name(self.version)).params,
            {key: self.scratch / embeddings_file_name(*key, self.version) for key in partition_keys(config)},
            self.run.need(PartitionResult).counts,
            read_relation_names(self.scratch),
        )
        ranking = EdgeRanking(
            model,
            asked,
            lambda: iter([*splits["test"].items(), *splits["valid"].items(), *asked.items()]),
            lambda: iter(splits["train"].items()),
            evaluation=self.run.spec.graph.eval,
        )
        ranking.rank(memory_bytes=MEMORY)
        return ranking.report(report_each=report_each).filtered["mrr"]

    def divided(self, edges: Mapping[tuple[int, int], EdgeList]) -> tuple[Buckets, Buckets]:
        """Return the edges with a new end, and the others.

        New entities follow those that the partition had.
        """
        known, new, others = self._known(), dict[tuple[int, int], EdgeList](), dict[tuple[int, int], EdgeList]()
        for bucket, listed in edges.items():
            lhs, rhs = (known[part if len(known) > 1 else 0] for part in bucket)
            is_new = (listed.lhs >= lhs) | (listed.rhs >= rhs)
            new[bucket], others[bucket] = listed.select(is_new), listed.select(~is_new)
        return new, others

    def named(self, split: str) -> set[Edge]:
        """Return the edges of a split by name."""
        nodes, relations = self._names()
        (listed,) = self.splits[split].values()
        rows = zip(listed.lhs.tolist(), listed.rel.tolist(), listed.rhs.tolist(), strict=True)
        return {(nodes[lhs], relations[rel], nodes[rhs]) for lhs, rel, rhs in rows}

    def numbered_all(self, edges: Sequence[Edge]) -> EdgeList:
        """Return edges by number, in their order.

        The run knows all of them.
        """
        nodes, relations = ({name: number for number, name in enumerate(names)} for names in self._names())
        ids = np.array([(nodes[lhs], relations[rel], nodes[rhs]) for lhs, rel, rhs in edges], np.int64).reshape(-1, 3)
        return EdgeList(lhs=ids[:, 0], rel=ids[:, 1], rhs=ids[:, 2])

    def _names(self) -> tuple[list[str], list[str]]:
        ((entity, _),) = self.run.config.entities.items()
        return read_entity_names(self.scratch, entity, 0), read_relation_names(self.scratch)

    def numbered(self, edges: Iterable[Edge]) -> EdgeList:
        """Return the edges that the run lacks, with known ends and relation."""
        ((entity, _),) = self.run.config.entities.items()
        nodes = {name: number for number, name in enumerate(read_entity_names(self.scratch, entity, 0))}
        relations = {name: number for number, name in enumerate(read_relation_names(self.scratch))}
        lists = [listed for split in self.splits.values() for listed in split.values()]
        there = {edge for each in lists for edge in zip(each.lhs, each.rel, each.rhs, strict=True)}
        rows = sorted(
            row
            for lhs, rel, rhs in edges
            if lhs in nodes and rhs in nodes and rel in relations
            if (row := (nodes[lhs], relations[rel], nodes[rhs])) not in there
        )
        ids = np.array(rows, np.int64).reshape(-1, 3)
        return EdgeList(lhs=ids[:, 0], rel=ids[:, 1], rhs=ids[:, 2])

    def _known(self) -> list[int]:
        """Return the number of entities in the night before, by partition."""
        previous = self.run.spec.previous
        assert previous is not None, "the run continues none"  # noqa: S101 - a mistake of the caller, not of the user
        before = RunContext.open(f"{self.run.store.url}/runs/{previous.run}")
        (counts,) = before.need(PartitionResult).counts.values()
        return counts


def _count(edges: Buckets) -> int:
    return sum(map(len, edges.values()))


@contextmanager
def _opened(url: str, epoch: int | None = None) -> Iterator[_Trained]:
    run = RunContext.open(url)
    prefix = run.key(RunLayout.checkpoint)
    files = (
        open_best(run.store, prefix)[1] if epoch is None else open_preserved(run.store, preserved_prefix(prefix, epoch))
    )
    keys = partition_keys(run.config)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        files.fetch_all(
            [model_file_name(files.version), *(embeddings_file_name(*key, files.version) for key in keys)], scratch
        )
        names = ["dynamic_rel_names.json", *(entity_names_file_name(*key) for key in keys)]
        open_directory(run, RunLayout.entities).fetch_all(names, scratch)
        yield _Trained(run, scratch, files.version, {split: _edges(run, split, scratch) for split in SPLITS})


def _edges(run: RunContext, split: str, scratch: Path) -> Buckets:
    files, matrix = open_directory(run, RunLayout.edges), run.need(BucketResult).matrix
    grid = [(lhs, rhs) for lhs in range(len(matrix)) for rhs in range(len(matrix[0]))]
    return {bucket: read_edges(files.fetch(f"{split}/{edge_file_name(*bucket)}", scratch)) for bucket in grid}
