"""``train``: train what is left of a run, committing each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import VerifiedFiles, claim, open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.train import PartitionKey, StartingPoint, TorchEngine, Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointWriter
    from pbg_tasks.train.schedule import Bucket


class StagedEdges:
    """The train split of a run, each bucket downloaded and verified when it is first needed."""

    def __init__(self, files: VerifiedFiles, matrix: list[list[int]], directory: Path) -> None:
        self._files, self._matrix, self._directory = files, matrix, directory

    def path(self, edge_path_idx: int, bucket: Bucket) -> Path:  # noqa: ARG002 - a run has one edge path
        """Return the local file of one bucket."""
        name = f"train/{edge_file_name(*bucket)}"
        local = self._directory / name
        return local if local.exists() else self._files.fetch(name, self._directory)

    def count(self, edge_path_idx: int) -> int:  # noqa: ARG002 - a run has one edge path
        """Return how many edges there are."""
        return sum(map(sum, self._matrix))

    def largest_bucket(self) -> int:
        """Return the size of the largest bucket."""
        return max(map(max, self._matrix))


def train(url: str) -> Result:
    """Train a run to its end, from wherever it stands."""
    return perform("train", url, _train)


def _train(run: RunContext) -> Result:
    run.require("bucket")
    prefix = run.key(RunLayout.checkpoint)
    with Scratch() as scratch, claim(run.store, prefix, run.spec_hash) as writer:
        trainer = _trainer(run, writer, scratch.path)
        run.store.put(f"{prefix}/config.json", config_bytes(run.config))
        figures = trainer.run()
        manifest = writer.manifest
    trained_now = sum(figure.edges for figure in figures)
    seconds = sum(figure.seconds for figure in figures)
    curve = trainer.stats.losses()
    return {
        "version": manifest.version if manifest else 0,
        "epochs": run.config.num_epochs,
        "warm_start": bool(run.spec.previous and run.spec.previous.warm_start),
        "engine": trainer.engine.name,
        "loss": curve[-1] if curve else None,
        "edges_trained": sum(manifest.edges) if manifest else 0,
        "edges_per_second": round(trained_now / seconds) if seconds else None,
        "curve": curve,
    }


def _trainer(run: RunContext, writer: CheckpointWriter, scratch: Path) -> Trainer:
    config, graph = run.config, run.spec.graph
    entities = run.require("partition")
    counts = {
        PartitionKey(entity, partition): count
        for entity, listed in entities["counts"].items()
        for partition, count in enumerate(listed)
    }
    files, grows = writer.files, False
    previous = run.spec.previous
    if writer.manifest is None and previous is not None and previous.warm_start:
        files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
        grows = True
    seed = graph.train.seed
    start = StartingPoint(
        config,
        counts,
        files if files.records else None,
        grows=grows,
        seed=seed,
        scratch=scratch,
    )
    edges = StagedEdges(open_directory(run, RunLayout.edges), run.require("bucket")["matrix"], scratch)
    engine = TorchEngine(config, entities["relations"], threads=run.spec.graph.resources.threads or 1)
    return Trainer(config, engine=engine, edges=edges, start=start, writer=writer, seed=seed, scratch=scratch)
