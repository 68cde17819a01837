"""``train``: train a run, or the data set of a PBG config.

It trains what is left and commits each epoch.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import checkpoint_names, open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import digest
from pbg_tasks.config.results import BucketResult, PartitionResult, RankFindings, TrainResult
from pbg_tasks.config.run import DELTA, id_layout, vector_space
from pbg_tasks.config.support import check_gpu, check_gpu_ranks
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.native.coverage import check_native
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.tasks.runs.dataset import EdgePaths, EntityPath
from pbg_tasks.tasks.runs.night import RunBuckets
from pbg_tasks.tasks.training.devices import train_on
from pbg_tasks.tasks.training.gang import TrainingTarget, train_as, train_here
from pbg_tasks.tasks.training.job import Job
from pbg_tasks.tasks.training.newcomers import newcomers
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.early_stopping import EarlyStopping
from pbg_tasks.training.engine.anchor import Anchor
from pbg_tasks.training.engine.choice import on_gpu
from pbg_tasks.training.engine.device import find_place
from pbg_tasks.training.engine.resident import find_devices
from pbg_tasks.training.ranks.group.gang import RankEnv
from pbg_tasks.training.schedule import Bucket, grid
from pbg_tasks.training.valid_sample import all_compared, negatives_of_edge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.graph import DeviceName, EngineName
    from pbg_tasks.config.results import Result, Stored
    from pbg_tasks.training.engine.resident import ResidentDevice

_OWN_KEYS = {
    *("entity_path", "edge_paths", "checkpoint_path", "init_path", "workers", "num_gpus", "background_io", "verbose"),
    *("num_machines", "num_partition_servers", "distributed_init_method", "rank_tls"),  # compared where ranks meet
}
"""Keys of a config in which the machines of a gang may differ."""


def train(url: str, *, rank: int | None = None, alone: bool = False, ignore_memory: bool = False) -> Result:
    """Train a run to its end, from its newest state.

    Args:
        url: of the run.
        rank: of this process in a gang whose size is the config's ``num_machines``; None: taken from the environment.
        alone: train in this process, whatever ``num_machines`` is, unless the environment makes it one of several.
        ignore_memory: train even if the forecast exceeds the memory.

    Returns:
        The figures, stored ones where the run is trained already; of another rank than 0 only its own, which are not
        stored.

    Raises:
        ResourceError: memory would run out.
        RankLostError: another rank of the gang was lost.
    """
    run = RunContext.open(url)
    env = RankEnv.from_environment(run.config, rank=rank, alone=alone)
    if env is not None and env.rank:
        if (done := run.find(TrainResult)) is not None:
            return done.document()  # rank 0 does not come to a meeting, either
        return _train_run(run, env, ignore_memory=ignore_memory).document()
    return perform(TrainResult, url, partial(_train_run, env=env, ignore_memory=ignore_memory)).document()


def _train_run(run: RunContext, env: RankEnv | None, *, ignore_memory: bool) -> Stored:
    run.need(BucketResult)
    wanted = run.spec.graph.train
    devices = devices_of(wanted.device, run.config, env, wanted.engine)
    with Scratch() as scratch:
        target = TrainingTarget(
            config=run.config,
            store=run.store,
            prefix=run.key(RunLayout.checkpoint),
            spec=run.spec_hash,
            job=lambda version: job_of(run, version, scratch.path, env=env, ignore_memory=ignore_memory),
        )
        return _undertake(target, env, devices, scratch.path)


def devices_of(
    device: DeviceName, config: ConfigSchema, env: RankEnv | None, engine: EngineName
) -> list[ResidentDevice]:
    """Find the GPU of a process, or return its several.

    This is done before anything is read or written.

    Raises:
        ConfigError: a rank asks for several, ranks with GPUs would share a type of one partition, or a key is for CPUs.
        ResourceError: there are fewer than the config asks for.
    """
    trains = env is None or env.role == "trainer"
    if trains and on_gpu(device, config, engine):
        check_gpu(config, engine=engine, source="train")
    elif trains:
        check_native(engine, config, source="train")
    if config.num_gpus <= 1:
        if trains:
            if env is not None and on_gpu(device, config, engine):
                check_gpu_ranks(config, env.world)
            find_place(device, config, engine)
        return []
    if env is not None:
        raise ConfigError(f"num_gpus: {config.num_gpus}: a rank trains on one GPU; set it to 1, or train without ranks")
    return find_devices(config)


def _undertake(target: TrainingTarget, env: RankEnv | None, devices: Sequence[ResidentDevice], scratch: Path) -> Stored:
    if not target.config.num_epochs:  # a gang has nothing to do, and one process stores the start
        return RankFindings(rank=env.rank) if env is not None and env.rank else train_here(target, scratch)
    if env is not None:
        return train_as(env, target, scratch)
    return train_on(devices, target, scratch) if devices else train_here(target, scratch)


def job_of(run: RunContext, version: int, scratch: Path, *, env: RankEnv | None = None, ignore_memory: bool) -> Job:
    """Return the training of a run.

    Args:
        run: bucketed.
        version: iterations that are committed.
        scratch: local directory.
        env: of this process in a gang; None: it trains alone.
        ignore_memory: train even if the forecast exceeds the memory.
    """
    previous = run.spec.previous
    warm_start = None
    if previous is not None and previous.warm_start:
        warm_start = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    entities, buckets = run.need(PartitionResult), run.need(BucketResult)
    if entities.relations is None:
        raise FormatError(f"{run.url}: the result of `pbg partition` has no key 'relations'; plan the run again")
    counts = {
        PartitionKey(entity, partition): count
        for entity, listed in entities.counts.items()
        for partition, count in enumerate(listed)
    }
    weight = run.spec.graph.train.anchor if warm_start is not None else 0.0
    reserve = _partition_bytes(run.config, counts, env) * (2 if weight else 1)  # an anchor reads the night before's too
    stored = open_directory(run, RunLayout.edges)
    edges = _edges(RunBuckets(stored, scratch, reserve=reserve), buckets.matrix)
    all_edges = None
    if buckets.delta_matrix is not None:
        # Which relations have loops is a fact of all edges; they are read for it once, and not kept on the disk.
        all_edges = _edges(RunBuckets(stored, scratch, reserve=sys.maxsize), buckets.matrix)
        edges = _edges(RunBuckets(stored, scratch, DELTA, reserve=reserve), buckets.delta_matrix)
    fresh = None
    if warm_start is not None and not version:
        fresh = newcomers(run, warm_start, counts, entities.relations, edges, scratch)
    return Job(
        config=run.config,
        counts=counts,
        relation_count=entities.relations,
        edges=edges,
        names=EntityPath(run.config, scratch).entity_names,
        warm_start=warm_start,
        newcomers=fresh,
        anchor=Anchor(warm_start, weight, scratch) if weight and warm_start is not None else None,
        shrink=run.spec.graph.train.shrink if warm_start is not None else None,
        seed=run.spec.graph.train.seed,
        engine=run.spec.graph.train.engine,
        device=run.spec.graph.train.device,
        weighted=run.spec.graph.columns.weight is not None,
        ignore_memory=ignore_memory,
        all_edges=all_edges,
        early_stopping=_early_stopping(run, entities, buckets, scratch),
    )


def _early_stopping(
    run: RunContext, entities: PartitionResult, buckets: BucketResult, scratch: Path
) -> EarlyStopping | None:
    rule = run.spec.graph.train.early_stopping
    if rule is None:
        return None
    files = RunBuckets(open_directory(run, RunLayout.edges), scratch, "valid")
    matrix, model = buckets.delta_matrix or buckets.matrix, run.config
    return EarlyStopping(
        rule.patience,
        FiledEdges(files, where=files.where),
        total=buckets.edges.valid,
        trained={Bucket(i, j): size for i, row in enumerate(matrix) for j, size in enumerate(row)},
        negatives=negatives_of_edge(model, entities.counts),
        dimension=model.dimension,
        seed=run.spec.graph.train.seed,
        all_negs=all_compared(model),
    )


def _edges(files: RunBuckets, matrix: list[list[int]]) -> FiledEdges:
    sizes = {(0, Bucket(i, j)): size for i, row in enumerate(matrix) for j, size in enumerate(row)}
    return FiledEdges(files, sizes, files.where)


def train_directory(
    config: ConfigSchema,
    *,
    seed: int = 0,
    engine: EngineName = "auto",
    device: DeviceName = "cpu",
    rank: int | None = None,
    ignore_memory: bool = False,
) -> Result:
    """Train the data set of a PBG config, from its newest checkpoint.

    PBG or this package may have written the checkpoint.

    Args:
        config: its paths may be local or ``s3://``.
        seed: decides every random choice; with ``workers: 1`` the same seed gives the same bits.
        engine: that computes.
        device: where it does; ``auto`` is a GPU where torch finds one.
        rank: of this process in a gang of ``num_machines``; None: taken from the environment.
        ignore_memory: train even if the forecast exceeds the memory.

    Raises:
        ConfigError: keys contradict the data, or the checkpoint is of another model.
        NotFoundError: entities or edges are missing.
        FormatError: a file is damaged.
        ConflictError: another process is training the same checkpoint.
        ResourceError: memory would run out, or there is no GPU.
    """
    env = RankEnv.from_environment(config, rank=rank)
    devices = devices_of(device, config, env, engine)
    if not config.edge_paths:
        raise ConfigError("edge_paths: is empty, so there is nothing to train on")
    started = time.monotonic()
    store = open_store(config.checkpoint_path)
    say(f"train: {', '.join(config.edge_paths)} into {store.url}")
    with Scratch() as scratch:
        entities = EntityPath(config, scratch.path)
        files = EdgePaths(config.edge_paths, scratch.path, reserve=_partition_bytes(config, entities.counts, env))
        sides = (config.partitions("lhs"), config.partitions("rhs"))
        files.check_grid(*sides)
        facts = files.facts(grid(*sides))
        job = Job(
            config=config,
            counts=entities.counts,
            relation_count=entities.relation_count,
            edges=FiledEdges(files, {key: fact.edges for key, fact in facts.items()}, files.where),
            names=entities.entity_names,
            warm_start=None,
            seed=seed,
            engine=engine,
            device=device,
            weighted=any(fact.weighted for fact in facts.values()),
            ignore_memory=ignore_memory,
        )

        def begin(version: int) -> Job:
            if not version and (env is None or not env.rank):
                entities.check_names()
            return job

        target = TrainingTarget(
            config=config,
            store=store,
            prefix="",
            spec=directory_spec(config),
            job=begin,
            adopt=checkpoint_names(config),
            common=digest(
                [
                    config.model_dump(mode="json", exclude=_OWN_KEYS),
                    seed,
                    sorted(entities.counts.items()),
                    sorted(facts.items()),
                ]
            ),
        )
        result = _undertake(target, env, devices, scratch.path)
    seconds = time.monotonic() - started
    say(f"train: finished in {human_seconds(seconds)}")
    return {"task": "train", "checkpoint": store.url, "seconds": round(seconds, 3), **result.document()}


def _partition_bytes(config: ConfigSchema, counts: Mapping[PartitionKey, int], env: RankEnv | None) -> int:
    """Estimate the bytes of partitions that this process writes.

    They are float32 vectors, and each row's sum twice.
    """
    size = sum(count * (4 * config.entity_dimension(key.entity) + 8) for key, count in counts.items())
    return size if env is None else size // config.num_machines


def directory_spec(config: ConfigSchema) -> str:
    """Hash what must not change between two trainings of a directory.

    That is the space of its vectors, and their places.
    """
    return digest({"space": vector_space(config), "layout": id_layout(config)})
