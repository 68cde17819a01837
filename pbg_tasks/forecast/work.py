"""Work of a night, and the usage of each task.

It follows from measured rates. The rates are those of one core of an AMD EPYC (Zen 4, AVX-512) with a local store.
Where they are wrong, they are so by a factor, which earlier nights show (``calibration``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.forecast.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import ModelConfig

_EDGE_BYTES = 24  # bytes of an edge in a bucket's file
_STAGED_BYTES = 15  # bytes of a snapshot's edge, as Parquet
_HASH_BYTES = 6  # bytes of a snapshot's edge that are kept for the next night
_ID_BYTES = 15  # bytes of an entity's name and place, in Parquet
_INDEX_BYTES = 44  # bytes of a name in its index
_NAME_BYTES = 10  # additional bytes of a name in PBG's lists
_DRIFT_QUERIES = 1_000
_DRIFT_FIGURES = 50_000  # bytes of the result with the figures of drift
_RELEASE_READS = 2.5  # of a warm start: one to continue the vectors, one or two to place new entities

EVAL_PART = "eval_part"
"""Name of the parts of an evaluation in a forecast."""


class Speed(NamedTuple):
    """Speed of training with one worker.

    Attributes:
        flops: of products with negatives, a second.
        score: seconds a score and its weight, whatever the dimension.
        row: seconds for each number of the rows that an edge looks up and changes.
        edge: seconds an edge, whatever its size.
        batch: seconds a batch, whatever its size.
    """

    flops: float
    score: float
    row: float
    edge: float
    batch: float


SPEEDS = {
    "native": Speed(120e9, 2e-9, 1.5e-9, 0.8e-6, 0.2e-3),
    "torch": Speed(75e9, 5e-9, 5e-9, 1.5e-6, 3e-3),
    "gpu": Speed(2e12, 0.05e-9, 0.1e-9, 0.02e-6, 3e-3),
}
_COMMIT = 0.05  # seconds of computing for the files and documents of an epoch, whatever their size
_COMMIT_WAIT = 0.1  # seconds that they take to be stored, without computing
_WAITS = dict.fromkeys(("validate", "partition", "bucket", "train", "preserve", "eval"), 0.5) | {"publish": 0.1}
"""Seconds that a task waits for the store, whatever the sizes."""
_EVALUATION_FLOPS = 120e9
_COMPARISON = 0.6e-9  # seconds to compare a score with the true entity's
_DISK = 500e6  # bytes a second to write or read, hash, and store HDF5


@dataclass(frozen=True, slots=True)
class Work:
    """Amount of work of a night.

    Attributes:
        model: ``num_partitions`` resolved.
        entities: number by type.
        edges: of the snapshot.
        trained: number of those that are not held out.
        asked: number of those that are ranked.
        candidates: largest number of entities of a type that an edge is ranked against.
        epochs: of the training.
        workers: of the training.
        threads: of the evaluation.
        engine: of the training: ``native``, ``torch``, or ``gpu``; ``cuda`` was that of forecasts with several workers.
        warm: whether it continues a release.
        compared: whether snapshot and vectors are compared with a release before, continued or not.
        indexed: number of entities of types whose names get an index.
        best: whether another release, the best of the last nights or the one of its own snapshot, also ranks the
            held-out edges.
        delta: whether it trains some of the edges only.
        parts: number of parts that count the candidates of the evaluation; 1: it is done as a whole.
    """

    model: ModelConfig
    entities: Mapping[str, int]
    edges: int
    trained: int
    asked: int
    candidates: int
    epochs: int
    workers: int
    threads: int
    engine: str
    warm: bool
    compared: bool
    indexed: int = 0
    best: bool = False
    delta: bool = False
    parts: int = 1

    @property
    def names(self) -> int:
        """Number of entities of all types."""
        return sum(self.entities.values())

    @property
    def vectors(self) -> int:
        """Bytes of all embeddings, with their optimizer's sums, in files."""
        return sum(4 * (self.model.entity_dimension(name) + 2) * count for name, count in self.entities.items())

    @property
    def dimension(self) -> int:
        """Largest dimension of the entity types."""
        return max(map(self.model.entity_dimension, self.entities))

    @property
    def kind(self) -> str:
        """Name of the parts that not every night of a graph has."""
        facts = {"warm": self.warm, "compared": self.compared, "best": self.best, "delta": self.delta}
        return ", ".join(name for name, there in facts.items() if there) or "first"


def modelled(work: Work, *, memory: Mapping[str, int]) -> dict[str, Usage]:
    """Return the usage of each task, by name, by the measured rates.

    Parts of an evaluation, which run at once, are the task ``eval_part``: its time is that of one of them, all else is
    that of all.

    Args:
        work: of the night.
        memory: peaks by task.
    """
    warm, compared = int(work.warm), int(work.compared)
    vectors, best = work.vectors, int(work.best)
    staged = work.edges * _STAGED_BYTES
    hashes, buckets = work.edges * _HASH_BYTES, work.edges * _EDGE_BYTES
    ids = work.names * _ID_BYTES
    counted = (1 + compared + best) * _ranking_seconds(work) + compared * _drift_seconds(work)
    brought, in_parts = (1 + compared + best) * vectors, work.parts > 1
    partitions = sum(entity.num_partitions for entity in work.model.entities.values())
    share = -(-partitions // work.parts) / partitions  # of the largest part, as a part has whole partitions
    part = {EVAL_PART: 0.2 + share * (counted + brought / _DISK) + 0.2e-6 * work.edges} if in_parts else {}
    evaluated = 0.2 + _evaluation_seconds(work) + compared * _compared_seconds(work) + best * _best_seconds(work)
    seconds = {
        "validate": 0.1 + 0.9e-6 * work.edges + compared * (0.05 + 0.3e-6 * work.edges),
        "partition": 0.1 + 0.4e-6 * work.edges + 1e-6 * work.names + warm * (0.03 + 0.5e-6 * work.names),
        "bucket": 0.15 + 1.2e-6 * work.edges + 0.3e-6 * work.names,
        "train": 0.2 + _training_seconds(work),
        "preserve": 0.1 + 1.8e-6 * work.indexed,
        **part,
        "eval": evaluated - in_parts * counted,
        "drift": compared * 0.02,  # passes on figures of eval
        "gate": 0.0,
        "publish": 0.05,
    }
    read = {
        "validate": compared * hashes + staged,
        "partition": warm * ids + staged,
        "bucket": ids + staged,
        "train": work.trained * _EDGE_BYTES + warm * _RELEASE_READS * vectors,
        "preserve": work.indexed * _ID_BYTES,
        "eval": (vectors if in_parts else brought) + buckets + best * 2 * ids,  # all rank the same
        EVAL_PART: brought + work.parts * buckets,
        "drift": compared * _DRIFT_FIGURES,
    }
    written = {
        "validate": hashes + staged,
        "partition": ids + work.names * _NAME_BYTES,
        "bucket": buckets,
        "train": max(work.epochs, 1) * vectors,
        "preserve": work.indexed * _INDEX_BYTES,
    }
    threads = {"train": work.workers, "eval": work.threads, "drift": work.threads}
    threads[EVAL_PART] = work.parts * work.threads
    waits = _WAITS | {"train": _WAITS["train"] + work.epochs * _COMMIT_WAIT, EVAL_PART: _WAITS["eval"]}
    return {
        task: Usage(
            each + waits.get(task, 0),
            each * threads.get(task, 1),
            memory[task],
            read.get(task, 0),
            written.get(task, 0),
        )
        for task, each in seconds.items()
    }


def _training_seconds(work: Work) -> float:
    model, speed = work.model, SPEEDS[work.engine]
    negatives = model.num_batch_negs + model.num_uniform_negs
    if any(relation.all_negs for relation in model.relations):
        negatives = max(work.entities.values())
    directions = 2 - model.disable_lhs_negs - model.disable_rhs_negs
    # An edge has two ends and a share of the drawn rows. Each direction takes three products: scores, and the gradients
    # of both factors.
    drawn = model.num_uniform_negs / min(model.num_batch_negs or model.num_uniform_negs or 1, model.batch_size)
    edge = speed.edge + (2 + directions * drawn) * work.dimension * speed.row
    edge += directions * negatives * (work.dimension * 2 * 3 / speed.flops + speed.score)
    buckets = model.partitions("lhs") * model.partitions("rhs")
    batches = max(buckets, work.trained / model.batch_size)
    epoch = (work.trained * edge + batches * speed.batch) / work.workers
    return work.epochs * (epoch + work.vectors / _DISK + _COMMIT)


def _ranking_seconds(work: Work) -> float:
    compared = 2 * work.asked * min(work.candidates, max(work.entities.values()))
    return compared * (work.dimension * 2 / _EVALUATION_FLOPS + _COMPARISON) / work.threads


def _evaluation_seconds(work: Work) -> float:
    return _ranking_seconds(work) + 0.2e-6 * work.edges + work.vectors / _DISK


def _compared_seconds(work: Work) -> float:
    """Return the seconds of the release before.

    It is asked the same edges, and its vectors are compared.
    """
    return 0.1 + _ranking_seconds(work) + _drift_seconds(work)


def _best_seconds(work: Work) -> float:
    """Return the seconds of a third model, with rows matched by name."""
    return 0.3 + _ranking_seconds(work) + 1e-6 * work.names + 2 * work.vectors / _DISK


def _drift_seconds(work: Work) -> float:
    compared = 2 * _DRIFT_QUERIES * max(work.entities.values())
    return compared * work.dimension * 2 / _EVALUATION_FLOPS / work.threads + 2 * work.vectors / _DISK
