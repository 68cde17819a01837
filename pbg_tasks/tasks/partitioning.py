"""``auto``: numbers of partitions that keep training within its memory.

Ids are stable, so a graph's first run decides on ``num_partitions``, the smallest numbers that fit: a later night keeps
those of the release it continues. How many partitions are in memory at once (``partition_buffer``) is every night's own
choice.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.checkpoint.manifest import decode
from pbg_tasks.config import ConfigSchema, GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.schema import AUTO
from pbg_tasks.config.support import check_gpu_ranks
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.names import embeddings_file_name
from pbg_tasks.memory.forecast import Forecast
from pbg_tasks.memory.tables import table_bytes
from pbg_tasks.memory.training import TrainingSize, training_forecast
from pbg_tasks.prepare.bucket_sample import largest_of
from pbg_tasks.progress import human_count, say
from pbg_tasks.storage import is_remote
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.training.data.partitions import Layout
from pbg_tasks.training.iterations import chunk_count
from pbg_tasks.training.ranks.leases import check_useful
from pbg_tasks.training.ranks.memory_shares import device_part, gang_part
from pbg_tasks.training.valid_sample import affordable, all_compared, negatives_of_edge, ranked_in_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.prepare.bucket_sample import BucketSample
    from pbg_tasks.prepare.counting import SnapshotCounts
    from pbg_tasks.publish import Release
    from pbg_tasks.storage import Store

MOST_PARTITIONS = 256  # a bucket of each pair is a file
_WHOLE_SHARE = 0.05  # of the memory: types that take less than this together are not worth partitioning
_WORKERS = 4  # where the spec leaves the number to the machine that trains


@dataclass(frozen=True, slots=True)
class ReleaseSizes:
    """Sizes of a release.

    Attributes:
        partitions: of each entity type.
        rows: of each entity type, estimated from the sizes of its files.
        model: its settings.
    """

    partitions: Mapping[str, int]
    rows: Mapping[str, int]
    model: ModelConfig

    @classmethod
    def of(cls, store: Store, release: Release) -> ReleaseSizes:
        """Read the sizes from a release's config and manifest.

        Raises:
            FormatError: it is damaged.
        """
        files = open_preserved(store, release.directory, expected_sha256=release.manifest_sha256)
        with Scratch() as scratch:
            document = files.fetch("config.json", scratch.path).read_bytes()
        config = decode(ConfigSchema, document, source=f"{files.url}/config.json", ignore_unknown=False)
        rows = {}
        for entity, schema in config.entities.items():
            names = [embeddings_file_name(entity, part, files.version) for part in range(schema.num_partitions)]
            row = 4 * (config.entity_dimension(entity) + 2)  # the sums are there twice, see formats.optimizer
            rows[entity] = sum(files.records[name].size for name in names) // row
        return cls(partition_counts(config), rows, config)

    def kept(self, model: ModelConfig) -> dict[str, int] | None:
        """Return the numbers of partitions with which a model keeps the ids.

        None where it cannot keep them.
        """
        kept = {name: count or self.partitions.get(name, 0) for name, count in partition_counts(model).items()}
        return kept if kept == self.partitions else None


@dataclass(frozen=True, slots=True)
class Expected:
    """Sizes that a training is expected to hold in memory, from counts.

    Attributes:
        entities: by type, those that are only known from the release before included.
        relations: distinct.
        edges: of the snapshot.
        sample: of them; None where nothing is partitioned.
    """

    entities: Mapping[str, int]
    relations: int
    edges: int
    sample: BucketSample | None = None

    @classmethod
    def of(cls, counts: SnapshotCounts, rows: Mapping[str, int]) -> Expected:
        """Make the expectation from counts.

        Args:
            counts: of the snapshot.
            rows: of a release whose ids are kept, by type. Nights share nearly all of their entities, so the larger
                number is near that of both together.
        """
        entities = {entity: max(count, rows.get(entity, 0)) for entity, count in counts.entities.items()}
        return cls(entities, counts.relations, counts.edges, counts.sample)

    def worst(self, graph: GraphSpec, partitions: Mapping[str, int]) -> Forecast:
        """Forecast a training with given numbers of partitions, for any engine.

        With ``engine: auto`` it is the engine that takes more memory. The forecast follows from the spec alone, because
        a plan that is tried again on another machine has to choose the same numbers.
        """
        asked = graph.train.engine
        engines = ("torch", "native") if asked == "auto" else (asked,)
        gpu = graph.train.device == "cuda" or graph.model.num_gpus  # where one worker trains
        workers = 1 if gpu else graph.model.workers or _WORKERS
        found = [self.training(graph, partitions, workers=workers, engine=engine) for engine in engines]
        return max(found, key=lambda forecast: forecast.peak)

    def training(
        self, graph: GraphSpec, partitions: Mapping[str, int], *, workers: int, engine: str, ranks: int = 1
    ) -> Forecast:
        """Forecast a training with given numbers of partitions.

        With several ranks it is rank 0's, with several GPUs that of their process.
        """
        entities = {
            name: entity.model_copy(update={"num_partitions": partitions[name]})
            for name, entity in graph.model.entities.items()
        }
        config = graph.model.model_copy(update={"entities": entities})
        counts = {name: [largest_of(self.entities[name], 1 / count)] * count for name, count in partitions.items()}
        largest = self.sample.largest(config) if self.sample else self.edges
        bucket = -(-largest // chunk_count(config, largest))
        gang = gang_part(config, rank=0, world=ranks, servers=config.num_partition_servers) if ranks > 1 else None
        if config.num_gpus > 1:
            gang = device_part(config, config.num_gpus)
        edges = bucket * max(config.num_gpus, 1)
        size = TrainingSize(
            config=config,
            counts=counts,
            relation_count=self.relations,
            held=Layout(config).capacity() if gang is None else gang.trained,
            edges=edges,
            ahead=edges if bucket < self.edges and (gang is None or config.partitions_ahead) else 0,
            workers=workers,
            engine=engine,
            weighted=graph.columns.weight is not None,
            remote=is_remote(graph.store),
            gang=gang,
            ranked=self._ranked(graph, config, counts),
        )
        return training_forecast(size)

    def _ranked(self, graph: GraphSpec, config: ModelConfig, counts: Mapping[str, Sequence[int]]) -> int:
        """Return the most valid edges of a bucket that early stopping ranks."""
        if graph.train.early_stopping is None:
            return 0
        split, negatives = graph.split, negatives_of_edge(config, counts)
        trained, all_negs = int(self.edges * (1 - split.valid - split.test)), all_compared(config)
        edges = affordable(trained, negatives, config.dimension, all_negs=all_negs)
        return ranked_in_bucket(
            edges, int(self.edges * split.valid), config.partitions("lhs") * config.partitions("rhs")
        )


def resolve(
    graph: GraphSpec, counts: SnapshotCounts, before: ReleaseSizes | None, *, ranks: int = 1
) -> tuple[GraphSpec, Expected]:
    """Put numbers in place of ``auto``.

    Args:
        graph: the spec.
        counts: of its snapshot.
        before: the release it continues.
        ranks: that are to train.

    Returns:
        The spec, and the sizes that its training will have to hold.

    Raises:
        ConfigError: no number of partitions is enough, or they are too few for several GPUs or ranks.
    """
    kept = before.kept(graph.model) if before else None
    expected = Expected.of(counts, before.rows if before and kept else {})
    if auto := graph.model.auto_partitioned:
        chosen = kept or _chosen(graph, expected)
        say(f"plan: num_partitions {', '.join(f'{entity} {chosen[entity]}' for entity in auto)}")
        if kept and expected.worst(graph, kept).peak > _budget(graph):
            say(
                "warning: training no longer keeps within resources.memory_gb; the numbers of partitions stay those of "
                "the release before all the same; `pbg repartition --partitions N` moves its rows to others"
            )
        graph = with_partitions(graph, chosen)
    if graph.model.num_gpus > 1:
        check_useful(graph.model, graph.model.num_gpus, "GPUs")
    check_useful(graph.model, ranks, "ranks (launch.ranks)")
    if graph.train.device == "cuda" or graph.model.num_gpus:
        check_gpu_ranks(graph.model, ranks)
    if graph.model.partition_buffer == AUTO:
        graph = _with_buffer(graph, _largest_buffer(graph, expected))
        say(f"plan: partition_buffer {graph.model.partition_buffer or 'as by default, for want of memory'}")
    return graph, expected


def partition_counts(model: ModelConfig) -> dict[str, int]:
    """Return ``num_partitions`` of each entity type."""
    return {name: entity.num_partitions for name, entity in model.entities.items()}


def with_partitions(graph: GraphSpec, partitions: Mapping[str, int]) -> GraphSpec:
    """Return the spec with these numbers of partitions."""
    data = graph.model_dump(mode="json")
    for entity, count in partitions.items():
        data["model"]["entities"][entity]["num_partitions"] = count
    return parse(GraphSpec, data, source=f"graph {graph.graph}")


def _with_buffer(graph: GraphSpec, buffer: int | None) -> GraphSpec:
    model = graph.model.model_copy(update={"partition_buffer": buffer})
    return graph.model_copy(update={"model": model})


def _largest_buffer(graph: GraphSpec, expected: Expected) -> int | None:
    """Return how many partitions of a type fit into memory.

    None when not even the default does.
    """
    partitions = partition_counts(graph.model)
    counts = range(max(Layout(graph.model).capacity().values()), max(partitions.values()) + 1)
    fitting = bisect_right(
        counts, _budget(graph), key=lambda count: expected.worst(_with_buffer(graph, count), partitions).peak
    )
    return counts[fitting - 1] if fitting else None


def _budget(graph: GraphSpec) -> float:
    return graph.resources.memory_gb * 1e9


def _chosen(graph: GraphSpec, expected: Expected) -> dict[str, int]:
    written, large = partition_counts(graph.model), _large(graph, expected)
    fixed = sorted({count for count in written.values() if count > 1})
    candidates = [1, *(fixed or range(2, MOST_PARTITIONS + 1))]
    forecast = Forecast("", ())
    for count in candidates:
        chosen = {name: number or (count if name in large else 1) for name, number in written.items()}
        forecast = expected.worst(graph, chosen)
        if forecast.peak <= _budget(graph):
            return chosen
    raise ConfigError(
        f"resources.memory_gb (--memory-gb): {graph.resources.memory_gb:g} GB are too little: with {candidates[-1]} "
        f"partitions of {', '.join(sorted(large)) or 'nothing'} training still takes {human_count(forecast.peak)}B; "
        f"raise it, or change {', '.join(key for key in forecast.keys if key != 'num_partitions')}"
    )


def _large(graph: GraphSpec, expected: Expected) -> set[str]:
    """Return the types to partition.

    That is all but the smallest, and not those whose entities are bags of features.
    """
    sizes = {name: table_bytes(graph.model, name, expected.entities[name]) for name in graph.model.auto_partitioned}
    large, together = set(), 0
    for name in sorted(sizes, key=sizes.__getitem__):
        together += sizes[name]
        if together > _WHOLE_SHARE * _budget(graph) and not graph.model.entities[name].featurized:
            large.add(name)
    return large
