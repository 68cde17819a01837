"""``eval``: rank held-out edges against every entity, with the files that will be released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import NotFoundError, QualityGateError
from pbg_tasks.evaluate import Candidates, Health, evaluate_edges
from pbg_tasks.formats.edges import edge_file_name, read_edges
from pbg_tasks.formats.embeddings import embeddings_file_name, iter_blocks
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.model.numerics import usable_cpus
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.train import PartitionKey, partition_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.edges import EdgeList

HEALTH_ROWS = 1 << 14


def evaluate(url: str) -> Result:
    """Evaluate the preserved version of a run on its held-out edges.

    Raises:
        QualityGateError: there is nothing held out to evaluate on.
    """
    return perform("eval", url, _evaluate)


def _evaluate(run: RunContext) -> Result:
    preserved = run.require("preserve")
    graph, config = run.spec.graph, run.config
    with Scratch() as scratch:
        release = open_preserved(run.store, preserved["directory"], expected_sha256=preserved["manifest_sha256"])
        directory = scratch.path
        names = {key: embeddings_file_name(*key, release.version) for key in partition_keys(config)}
        model_name = model_file_name(release.version)
        release.fetch_all([*names.values(), model_name, "dynamic_rel_names.json"], directory)
        buckets = _Buckets(run, directory)
        held_out = dict(buckets.read(graph.eval.split))
        if not any(len(edges.lhs) for edges in held_out.values()):
            raise QualityGateError(
                f"{run.url}: no {graph.eval.split} edges were held out; raise split.{graph.eval.split}"
            )
        report, candidates = evaluate_edges(
            config,
            read_model(directory / model_name).params,
            {key: directory / name for key, name in names.items()},
            run.require("partition")["counts"],
            held_out,
            lambda: buckets.of("valid", "test"),
            train=lambda: buckets.of("train"),
            evaluation=graph.eval,
            relation_names=read_relation_names(directory),
            candidates=_stored_candidates(run),
            hidden=_hidden(release, directory),
            threads=graph.resources.threads or usable_cpus(),
            memory_bytes=int(graph.resources.memory_gb * 1e9),
            seed=graph.train.seed,
        )
        health = {entity: _health(config, entity, names, directory) for entity in config.entities}
    if candidates is not None:
        _store_candidates(run, candidates)
    return report.to_json() | {"health": health}


def _hidden(release: VerifiedFiles, scratch: Path) -> EntitySet | None:
    """Return the entities that the release does not show; None where it shows everyone."""
    if EXPIRED not in release.names:
        return None
    return EntitySet.from_bytes(release.fetch(EXPIRED, scratch).read_bytes(), source=f"{release.url}/{EXPIRED}")


def _health(config: ConfigSchema, entity: str, names: dict[PartitionKey, str], directory: Path) -> dict[str, Any]:
    """Look whether the embeddings of a type are alive."""
    blocks = (
        block
        for partition in range(config.entities[entity].num_partitions)
        for _, block in iter_blocks(directory / names[PartitionKey(entity, partition)], HEALTH_ROWS)
    )
    return Health.of(blocks).to_json()


class _Buckets:
    """The edge files of a run, downloaded one at a time."""

    def __init__(self, run: RunContext, directory: Path) -> None:
        self._files, self._directory = open_directory(run, RunLayout.edges), directory
        matrix = run.require("bucket")["matrix"]
        self._grid = [(lhs, rhs) for lhs in range(len(matrix)) for rhs in range(len(matrix[0]))]

    def read(self, split: str) -> Iterator[tuple[tuple[int, int], EdgeList]]:
        """Yield each bucket of a split."""
        for bucket in self._grid:
            path = self._files.fetch(f"{split}/{edge_file_name(*bucket)}", self._directory)
            yield bucket, read_edges(path)
            path.unlink()

    def of(self, *splits: str) -> Iterator[tuple[tuple[int, int], EdgeList]]:
        """Yield each bucket of several splits."""
        for split in splits:
            yield from self.read(split)


def _candidates_key(run_id: str) -> str:
    return f"runs/{run_id}/{RunLayout.candidates}"


def _stored_candidates(run: RunContext) -> Candidates | None:
    """Return the candidates of an interrupted try, or of the release this run continues, so that nights compare."""
    previous = run.spec.previous
    runs = [run.run_id, *([previous.run] if previous is not None and previous.keep_ids else [])]
    for run_id in runs:
        try:
            return Candidates.from_bytes(run.store.get(_candidates_key(run_id)).data)
        except NotFoundError:
            continue
    return None


def _store_candidates(run: RunContext, candidates: Candidates) -> None:
    key = _candidates_key(run.run_id)
    if run.store.head(key) is None:
        run.store.put_new(key, candidates.to_bytes())
