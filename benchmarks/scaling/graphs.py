"""The simulated graphs, and measurements of PBG's authors on two."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.scaling.simulate import Work
from pbg_tasks.config import ModelConfig
from pbg_tasks.training.data.partitions import partition_keys
from pbg_tasks.training.schedule import bucket_order

SKEW = 0.1
"""Deviation of the logarithm of a partition's edges: FB15k in 16 partitions has 0.08 on the left and 0.14 on the right,
BlogCatalog 0.09 and 0.10; larger graphs have less."""
NOISE = 0.05
"""Same of a bucket's, beside those of its partitions (0.03 there), and of its rate."""
TIES = "random"
"""Order of buckets that cost the same I/O."""


class Machines(NamedTuple):
    """One published training: how many machines and partitions, and hours."""

    machines: int
    partitions: int
    hours: float


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of one entity type, as in PBG's paper.

    Lerer et al., SysML 2019.

    The hours were not checked against the print again; Freebase's dimension is what its memory suggests.

    Attributes:
        name: of the graph.
        entities: number of them.
        dimension: of the vectors.
        epochs: of the training.
        published: hours, by machines.
    """

    name: str
    entities: int
    dimension: int
    epochs: int
    published: tuple[Machines, ...]

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch on one machine, with everything in memory."""
        return self.published[0].hours * 3600 / self.epochs

    @property
    def row_bytes(self) -> int:
        """Bytes of an entity: its vector, and its optimizer's sum."""
        return 4 * self.dimension + 4


FREEBASE = Graph(
    "Freebase",
    entities=121_000_000,
    dimension=100,
    epochs=10,
    published=(Machines(1, 1, 30), Machines(2, 4, 23), Machines(4, 8, 13), Machines(8, 16, 7.7)),
)
TWITTER = Graph(
    "Twitter",
    entities=41_600_000,
    dimension=500,
    epochs=10,
    published=(Machines(1, 1, 18), Machines(2, 4, 9.8), Machines(4, 8, 6.5), Machines(8, 16, 3.4)),
)


def work_of(graph: Graph, partitions: int, *, faster: float = 1.0, ties: str = TIES) -> Work:
    """Return an epoch of a graph.

    Args:
        graph: trained.
        partitions: of its entities.
        faster: ratio of a machine's speed to PBG's.
        ties: ``bucket_order`` of buckets that cost the same I/O, or ``rows`` for row by row.
    """
    rng = random.Random(0)  # noqa: S311 - a simulation, not a secret
    weights = [rng.lognormvariate(0, SKEW) for _ in range(2 * partitions)]
    order = bucket_order("random" if ties == "rows" else ties, partitions, partitions, seed="0")
    buckets = sorted(order) if ties == "rows" else order
    shares = {
        bucket: weights[bucket.lhs] * weights[partitions + bucket.rhs] * rng.lognormvariate(0, NOISE)
        for bucket in sorted(buckets)
    }
    scale = graph.epoch_seconds / faster / sum(shares.values())
    config = one_type(partitions, graph.dimension)
    counts = dict.fromkeys(partition_keys(config), -(-graph.entities // partitions))
    return Work(config, {bucket: shares[bucket] * scale for bucket in buckets}, counts, graph.row_bytes)


def one_type(partitions: int, dimension: int) -> ModelConfig:
    """Return a config of one entity type, used on both sides."""
    return ModelConfig.model_validate(
        {
            "entities": {"node": {"num_partitions": partitions}},
            "relations": [{"name": "edge", "lhs": "node", "rhs": "node"}],
            "dimension": dimension,
        }
    )
