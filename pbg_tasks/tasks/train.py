"""``train``: train what is left of a run, or of a data set that PBG's config names, committing each epoch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import checkpoint_names, claim, open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import digest
from pbg_tasks.config.run import id_layout, vector_space
from pbg_tasks.config.support import check_supported
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.formats.edges import edge_file_name, has_weights
from pbg_tasks.memory import (
    TrainingSize,
    check_fits,
    forget_peak,
    peak_bytes,
    resident_bytes,
    training_forecast,
)
from pbg_tasks.model.numerics import usable_cpus
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.storage import open_store
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.dataset import EdgePaths, EntityPath
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.train import PartitionKey, StartingPoint, Trainer, open_initial
from pbg_tasks.train.edge_files import FiledEdges
from pbg_tasks.train.engines import engine_name, make_engine, on_gpu
from pbg_tasks.train.iterations import chunk_count
from pbg_tasks.train.partitions import Layout
from pbg_tasks.train.place import find_place
from pbg_tasks.train.schedule import Bucket, grid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter, VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.graph import DeviceName, EngineName
    from pbg_tasks.memory import Forecast
    from pbg_tasks.train.edge_files import EdgeFiles


@dataclass(frozen=True, slots=True)
class Job:
    """A training, wherever its parts lie.

    Attributes:
        config: PBG's config, paths included.
        counts: entities (or features) of each partition.
        relation_count: relations in the data.
        edges: of every edge path.
        names: gives a partition's names by offset; asked only when vectors come by name.
        warm_start: release to start from, when nothing is committed yet.
        seed: of every random choice.
        engine: that computes.
        device: where it does.
        weighted: whether edges have weights.
        ignore_memory: train even if the forecast says that memory will run out.
    """

    config: ConfigSchema
    counts: Mapping[PartitionKey, int]
    relation_count: int
    edges: EdgeFiles
    names: Callable[[PartitionKey], list[str]]
    warm_start: VerifiedFiles | None
    seed: int
    engine: EngineName = "auto"
    device: DeviceName = "cpu"
    weighted: bool = False
    ignore_memory: bool = False

    def run(self, writer: CheckpointWriter, scratch: Path) -> Result:
        """Train to the end and return the figures.

        Raises:
            ResourceError: it would need more memory than there is.
        """
        forecast = self.forecast(remote=writer.store.url.startswith("s3://"))
        check_fits(forecast, ignore=self.ignore_memory)
        forget_peak()
        engine = make_engine(self.engine, self.config, self.relation_count, workers=self._workers, device=self.device)
        trainer = Trainer(
            self.config,
            engine=engine,
            edges=self.edges,
            start=self._start(writer, scratch),
            writer=writer,
            seed=self.seed,
            scratch=scratch,
        )
        writer.store.put(join(writer.prefix, "config.json"), config_bytes(self.config))
        figures = trainer.run()
        seconds = sum(figure.seconds for figure in figures)
        curve = trainer.stats.losses()
        result: Result = {
            "version": writer.version,
            "epochs": self.config.num_epochs,
            "warm_start": self.warm_start is not None,
            "engine": engine.name,
            "device": engine.place.device.type,
            "workers": engine.workers,
            "loss": curve[-1] if curve else None,
            "edges_trained": sum(writer.manifest.edges) if writer.manifest else 0,
            "edges_per_second": round(sum(figure.edges for figure in figures) / seconds) if seconds else None,
            "curve": curve,
            "memory": {"measured_peak": peak_bytes(), **forecast.to_json()},
        }
        held_out = figures[-1].held_out if figures else None
        return result if held_out is None else result | {"held_out": held_out.to_json()}

    def forecast(self, *, remote: bool = False) -> Forecast:
        """Say what memory the training will take, from what this process has now."""
        config = self.config
        buckets = grid(config.partitions("lhs"), config.partitions("rhs"))
        sizes = [self.edges.count(path, bucket) for path in range(len(config.edge_paths)) for bucket in buckets]
        chunks = chunk_count(config, max(sizes))
        edges = -(-max(sizes) // chunks)
        size = TrainingSize(
            config=config,
            counts={
                entity: [self.counts[PartitionKey(entity, part)] for part in range(schema.num_partitions)]
                for entity, schema in config.entities.items()
            },
            relation_count=self.relation_count,
            held=Layout(config).capacity(),
            edges=edges,
            ahead=edges if len(sizes) * chunks > 1 else 0,
            workers=self._workers,
            engine=engine_name(self.engine, self.config, self.device)[0],
            weighted=self.weighted,
            remote=remote,
        )
        return training_forecast(size, base=resident_bytes())

    @property
    def _workers(self) -> int:
        return 1 if on_gpu(self.device, self.config) else self.config.workers or usable_cpus()

    def _start(self, writer: CheckpointWriter, scratch: Path) -> StartingPoint:
        committed, initial = writer.files if writer.files.names else None, None
        if not writer.version and self.warm_start is None:
            initial = open_initial(self.config, scratch, self.names)
        return StartingPoint(
            self.config,
            self.counts,
            committed or self.warm_start,
            grows=committed is None,
            seed=self.seed,
            scratch=scratch,
            initial=initial,
        )


def train(url: str, *, ignore_memory: bool = False) -> Result:
    """Train a run to its end, from wherever it stands.

    Args:
        url: of the run.
        ignore_memory: train even if the forecast says that memory will run out.

    Raises:
        ResourceError: memory would run out.
    """
    return perform("train", url, partial(_train_run, ignore_memory=ignore_memory))


def _train_run(run: RunContext, *, ignore_memory: bool) -> Result:
    run.require("bucket")
    find_place(run.spec.graph.train.device, run.config)
    previous = run.spec.previous
    warm_start = None
    if previous is not None and previous.warm_start:
        warm_start = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    entities = run.require("partition")
    with Scratch() as scratch, claim(run.store, run.key(RunLayout.checkpoint), run.spec_hash) as writer:
        matrix = run.require("bucket")["matrix"]
        sizes = {(0, Bucket(i, j)): size for i, row in enumerate(matrix) for j, size in enumerate(row)}
        job = Job(
            config=run.config,
            counts={
                PartitionKey(entity, partition): count
                for entity, listed in entities["counts"].items()
                for partition, count in enumerate(listed)
            },
            relation_count=entities["relations"],
            edges=FiledEdges(RunBuckets(open_directory(run, RunLayout.edges), scratch.path), sizes),
            names=EntityPath(run.config, scratch.path).entity_names,
            warm_start=warm_start,
            seed=run.spec.graph.train.seed,
            engine=run.spec.graph.train.engine,
            device=run.spec.graph.train.device,
            weighted=run.spec.graph.columns.weight is not None,
            ignore_memory=ignore_memory,
        )
        return job.run(writer, scratch.path)


class RunBuckets:
    """The train split of a run, each bucket downloaded and verified when it is first needed."""

    def __init__(self, files: VerifiedFiles, directory: Path) -> None:
        self._files, self._directory = files, directory

    def local(self, edge_path_idx: int, bucket: Bucket) -> Path:  # noqa: ARG002 - a run has one edge path
        """Return the local file of one bucket."""
        name = f"train/{edge_file_name(*bucket)}"
        path = self._directory / name
        return path if path.exists() else self._files.fetch(name, self._directory)


def train_directory(
    config: ConfigSchema,
    *,
    seed: int = 0,
    engine: EngineName = "auto",
    device: DeviceName = "cpu",
    ignore_memory: bool = False,
) -> Result:
    """Train the data set a PBG config names, from wherever its checkpoint stands, whoever wrote it.

    Args:
        config: its paths may be local or ``s3://``.
        seed: decides every random choice; with ``workers: 1`` the same seed gives the same bits.
        engine: that computes.
        device: where it does; ``auto`` is a GPU where torch finds one.
        ignore_memory: train even if the forecast says that memory will run out.

    Raises:
        ConfigError: keys contradict the data, or the checkpoint is of another model.
        NotFoundError: entities or edges are missing.
        FormatError: a file is damaged.
        ConflictError: somebody else is training the same checkpoint.
        ResourceError: memory would run out, or there is no GPU.
    """
    check_supported(config, source="config")
    find_place(device, config)  # before anything is read or written
    if not config.edge_paths:
        raise ConfigError("edge_paths: is empty, so there is nothing to train on")
    started = time.monotonic()
    store = open_store(config.checkpoint_path)
    say(f"train: {', '.join(config.edge_paths)} into {store.url}")
    with Scratch() as scratch:
        entities = EntityPath(config, scratch.path)
        files = EdgePaths(config.edge_paths, scratch.path)
        files.check_grid(config.partitions("lhs"), config.partitions("rhs"))
        job = Job(
            config=config,
            counts=entities.counts,
            relation_count=entities.relation_count,
            edges=FiledEdges(files),
            names=entities.entity_names,
            warm_start=None,
            seed=seed,
            engine=engine,
            device=device,
            weighted=_have_weights(config, files),
            ignore_memory=ignore_memory,
        )
        with claim(store, "", directory_spec(config), adopt=checkpoint_names(config)) as writer:
            result = job.run(writer, scratch.path)
    seconds = time.monotonic() - started
    say(f"train: finished in {human_seconds(seconds)}")
    return {"task": "train", "checkpoint": store.url, "seconds": round(seconds, 3), **result}


def _have_weights(config: ConfigSchema, files: EdgePaths) -> bool:
    """Tell whether edges have weights: those of the first bucket that has a file."""
    found = (files.local(0, bucket) for bucket in grid(config.partitions("lhs"), config.partitions("rhs")))
    path = next((path for path in found if path is not None), None)
    return path is not None and has_weights(path)


def directory_spec(config: ConfigSchema) -> str:
    """Hash what a checkpoint directory may not change between two trainings: its vectors' space and their places."""
    return digest({"space": vector_space(config), "layout": id_layout(config)})
