"""Forecast of a training process's peak memory.

It follows from the config and a few counts. The figures of an edge and of a row are counted from the code that holds
them (``train``); those of the process were measured with torch 2.13 on x86-64 Linux. tests/memory compares the whole
with real trainings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.memory.forecast import Forecast, Line
from pbg_tasks.memory.gang import served_lines, shared_line
from pbg_tasks.memory.parameters import parameter_count
from pbg_tasks.memory.steps import FLOAT, relation_kinds, worker_memory
from pbg_tasks.memory.tables import largest_bytes, table_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.memory.gang import GangPart

INT = 8
"""Bytes of an id."""
TORCH_BASE = 292_000_000
"""Resident bytes of a process that has imported the modules of training: Python, torch, h5py, pydantic and the package.
"""
_FIRST_USE = 28_000_000  # code and tables of libraries, loaded when they are first called
_SLICE = 64 << 20  # bytes of a file that are written at a time
_S3_UPLOAD = 110_000_000  # boto3, and the parts of an upload that are under way
_EDGE_KEYS = ("num_edge_chunks", "num_partitions")
_BATCH_KEYS = ("workers", "batch_size", "num_uniform_negs")


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """Values from which a training's memory follows.

    Attributes:
        config: the model, ``num_partitions`` resolved.
        counts: entities (or features) of each partition, by type.
        relation_count: relations in the data.
        held: largest number of partitions of each entity type in memory.
        edges: of the largest bucket, or of the largest chunk of one.
        ahead: of the next bucket or chunk, which are read meanwhile.
        workers: threads of the training.
        engine: its name.
        weighted: whether edges have weights.
        remote: whether the checkpoint is on S3.
        gang: memory that it holds as one of several ranks; None: it trains alone.
        ranked: most valid edges of a bucket that are ranked after its training.
    """

    config: ModelConfig
    counts: Mapping[str, Sequence[int]]
    relation_count: int
    held: Mapping[str, int]
    edges: int
    ahead: int
    workers: int
    engine: str
    weighted: bool = False
    remote: bool = False
    gang: GangPart | None = None
    ranked: int = 0


def training_forecast(size: TrainingSize, *, base: int | None = None) -> Forecast:
    """Forecast the peak of ``train``.

    The peak is the memory that stays, and that of the largest of its phases.

    Args:
        size: of the training.
        base: resident bytes before it starts; None: those of a process that is to be started.
    """
    parameters = parameter_count(size.config, size.relation_count) * FLOAT
    workers = worker_memory(size)
    batches = f"batches of {size.workers} worker{'s' if size.workers > 1 else ''}"
    stays = [
        Line("process", (base or TORCH_BASE) + _FIRST_USE),
        Line("embeddings in memory", largest_bytes(size.config, size.counts, size.held), _embedding_keys(size)),
        *_of_gang(size, 2 * parameters),
        Line("edges of a bucket", size.edges * _columns(size), _EDGE_KEYS),
        Line("edges of the next", size.ahead * _columns(size), _EDGE_KEYS),
        Line("edges as they were read", _left_over(size), _EDGE_KEYS),
        Line("shared parameters", 2 * parameters, ("dimension",)),
        Line(batches, workers.kept, _BATCH_KEYS),
        Line("chances of negatives", _chances(size), ("negatives_by_degree",)),
        Line("uploads", _S3_UPLOAD if size.remote else 0),
    ]
    blob = _blob(max(parameters, max(map(max, size.counts.values())) * FLOAT)) + _converted(size)
    phases = [
        [Line("holding edges out", size.edges * _split_off(size), _EDGE_KEYS)],
        [
            Line("order of the edges", size.edges * _ordered(size), _EDGE_KEYS),
            Line("scores and gradients", workers.passing, _BATCH_KEYS),
        ],
        [Line("scores of held-out edges", workers.ranking, _BATCH_KEYS)],
        [
            Line("files being written", blob),
            Line("a partition that no relation names", _untrained(size), ("num_partitions", "dimension")),
        ],
    ]
    return Forecast.of("train", [*stays, *max(phases, key=lambda lines: sum(line.size for line in lines))])


def serving_forecast(
    config: ModelConfig,
    counts: Mapping[str, Sequence[int]],
    part: GangPart,
    *,
    base: int | None = None,
    remote: bool = False,
) -> Forecast:
    """Forecast the peak of a process that only serves partitions.

    Args:
        config: the model, ``num_partitions`` resolved.
        counts: entities (or features) of each partition, by type.
        part: its share of the gang's memory.
        base: resident bytes before it starts; None: those of a process that is to be started.
        remote: whether the checkpoint is on S3.
    """
    largest = max((max(counts[entity]) for entity in part.served), default=0)
    return Forecast.of(
        "partition server",
        [
            Line("process", (base or TORCH_BASE) + _FIRST_USE),
            *served_lines(config, counts, part),
            Line("uploads", _S3_UPLOAD if remote else 0),
            Line("files being written", _blob(largest * FLOAT)),
        ],
    )


def _embedding_keys(size: TrainingSize) -> tuple[str, ...]:
    """Return the keys that limit the embeddings in memory.

    Ranks have no buffer of partitions.
    """
    keys = ("num_partitions", "dimension")
    return keys if size.gang is not None else (*keys, "partition_buffer")


def _of_gang(size: TrainingSize, parameters: int) -> list[Line]:
    """Return the terms of one of several ranks."""
    if size.gang is None:
        return []
    shared = shared_line(size.config, size.counts, size.gang, parameters=parameters)
    return [*served_lines(size.config, size.counts, size.gang), shared]


def _blob(sums: int) -> int:
    """Return the bytes that torch.save makes of sums.

    They are in a buffer that grows by an eighth.
    """
    return sums * 5 // 4


def _converted(size: TrainingSize) -> int:
    """Return the bytes of bfloat16 that is made float32 for a file.

    It is a slice at a time.
    """
    if size.config.embedding_precision == "f32":
        return 0
    listed = size.counts.items()
    return min(_SLICE, max(max(counts) * size.config.entity_dimension(name) * FLOAT for name, counts in listed))


def _chances(size: TrainingSize) -> int:
    """Return the bytes for drawing negatives by degree.

    They are a number for each entity of a side, and temporaries of its computation.
    """
    if not size.config.negatives_by_degree:
        return 0
    ends = {(side, getattr(each, side)) for each in size.config.relations for side in ("lhs", "rhs")}
    largest = [max(size.counts[entity]) for _, entity in ends]
    return (sum(largest) + 3 * max(largest)) * INT


def _untrained(size: TrainingSize) -> int:
    """Return the bytes of the largest partition that no bucket needs.

    It is read and written when an epoch ends.
    """
    types = (entity for entity, held in size.held.items() if not held)
    return max((table_bytes(size.config, entity, max(size.counts[entity])) for entity in types), default=0)


def _columns(size: TrainingSize) -> int:
    """Return the bytes of an edge as it is read."""
    return 3 * INT + (FLOAT if size.weighted else 0)


def _left_over(size: TrainingSize) -> int:
    """Return the bytes of columns that stay after edges were held out.

    A rank keeps the columns while it trains the other edges. A single process frees them, except those of a single
    bucket, which the next epoch trains again.
    """
    kept = size.gang is not None or (not size.ahead and size.config.num_epochs > 1)
    return size.edges * _columns(size) if size.config.eval_fraction and kept else 0


def _split_off(size: TrainingSize) -> int:
    """Return bytes an edge while edges are held out.

    They are copies of both parts, a permutation, and flags.
    """
    return _columns(size) + INT + 1 if size.config.eval_fraction else 0


def _ordered(size: TrainingSize) -> int:
    """Return the largest temporaries of an edge during training, in bytes."""
    checked = INT + 1  # the family of each relation, flags
    ordered = INT if relation_kinds(size.config) == 1 else 4 * INT  # the shuffled order, also by relation
    known = 8 * INT if size.config.mask_known_negatives else 0  # a copy and both sides' answers, one being sorted
    return max(checked, ordered, known)
