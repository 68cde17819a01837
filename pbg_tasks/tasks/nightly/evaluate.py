"""``eval``: rank held-out edges against every entity, with the files that will be released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import NotFoundError
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.evaluate.evaluation import PIECE_EDGES, evaluate_edges
from pbg_tasks.evaluate.health import Health
from pbg_tasks.formats.embeddings import embeddings_file_name, iter_blocks
from pbg_tasks.formats.entities import RELATION_NAMES, read_relation_names
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.memory import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.nightly.baseline import bring_baseline
from pbg_tasks.tasks.nightly.comparison_target import awaited, incomparable, release_before
from pbg_tasks.tasks.nightly.coverage import open_coverage
from pbg_tasks.tasks.nightly.edge_buckets import EdgeBuckets, require_held_out
from pbg_tasks.train import partition_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.coverage import Coverage
    from pbg_tasks.formats.edges import EdgeList

HEALTH_ROWS = 1 << 14


def evaluate(url: str) -> Result:
    """Evaluate the preserved version of a run on its held-out edges, and the release before on the same.

    Raises:
        QualityGateError: there is nothing held out to evaluate on.
    """
    return perform("eval", url, _evaluate)


def _evaluate(run: RunContext) -> Result:
    preserved = run.require("preserve")
    require_held_out(run, run.require("bucket"))  # an earlier version's ``bucket`` did not ask
    graph, config, counts = run.spec.graph, run.config, run.require("partition")["counts"]
    with Scratch() as scratch:
        directory, before, start = (scratch.path / name for name in ("now", "before", "start"))
        for path in (directory, before, start):
            path.mkdir()
        release = open_preserved(run.store, preserved["directory"], expected_sha256=preserved["manifest_sha256"])
        paths: dict[tuple[str, int], Path] = {
            key: directory / embeddings_file_name(*key, release.version) for key in partition_keys(config)
        }
        model_name = model_file_name(release.version)
        release.fetch_all([*(path.name for path in paths.values()), model_name, RELATION_NAMES], directory)
        buckets = EdgeBuckets(run, directory)
        held_out = dict(buckets.of(graph.eval.split))
        relations = read_relation_names(directory)
        missing = awaited(run)
        current = release_before(run)
        baseline = bring_baseline(run, current, counts, before) if current is not None else None
        reason = incomparable(run, current) if current is not None else None
        coverage = open_coverage(run, baseline, paths, len(relations), start) if baseline is not None else None
        model = read_model(directory / model_name)
        report, candidates = evaluate_edges(
            config,
            model.params,
            paths,
            counts,
            held_out,
            lambda: buckets.pieces("valid", "test", edges=PIECE_EDGES),
            train=lambda: _noted(buckets.pieces("train", edges=PIECE_EDGES), coverage),
            evaluation=graph.eval,
            relation_names=relations,
            loops=model.loops,
            candidates=stored_candidates(run),
            hidden=_hidden(release, directory),
            compared=baseline.compared(config, relations) if baseline is not None and reason is None else None,
            gates=graph.gates,
            threads=graph.resources.threads or usable_cpus(),
            memory_bytes=int(graph.resources.memory_gb * 1e9),
            seed=graph.train.seed,
        )
        health = {entity: _health(config, entity, paths) for entity in config.entities}
    if candidates is not None:
        _store_candidates(run, candidates)
    found = report.to_json() | {"health": health}
    if current is not None:
        compared = {"release": current.seq, "snapshot": current.snapshot, "reason": reason}
        compared |= {"awaited": missing} if missing is not None else {}
        found["against"] = compared | found.get("against", {})
    return found | ({"coverage": coverage.to_json()} if coverage is not None else {})


def _noted(
    edges: Iterator[tuple[tuple[int, int], EdgeList]], coverage: Coverage | None
) -> Iterator[tuple[tuple[int, int], EdgeList]]:
    """Let ``coverage`` see training edges as they pass by."""
    for bucket, listed in edges:
        if coverage is not None:
            coverage.add(bucket, listed)
        yield bucket, listed


def _hidden(release: VerifiedFiles, scratch: Path) -> EntitySet | None:
    """Return the entities that the release does not show; None where it shows everyone."""
    if EXPIRED not in release.names:
        return None
    return EntitySet.from_bytes(release.fetch(EXPIRED, scratch).read_bytes(), source=f"{release.url}/{EXPIRED}")


def _health(config: ConfigSchema, entity: str, paths: Mapping[tuple[str, int], Path]) -> dict[str, Any]:
    """Look whether the embeddings of a type are alive."""
    blocks = (
        block
        for partition in range(config.entities[entity].num_partitions)
        for _, block in iter_blocks(paths[entity, partition], HEALTH_ROWS)
    )
    return Health.of(blocks).to_json()


def _candidates_key(run_id: str) -> str:
    return f"runs/{run_id}/{RunLayout.candidates}"


def stored_candidates(run: RunContext) -> Candidates | None:
    """Return the candidates of an interrupted try, or of the release this run continues, so that nights compare.

    A sample that was drawn with another ``eval.max_candidates`` than this run's is not used again.
    """
    previous, limit = run.spec.previous, run.spec.graph.eval.max_candidates
    if (own := _candidates_of(run, run.run_id)) is not None:
        return own
    if previous is None or not previous.keep_ids:
        return None
    sample = _candidates_of(run, previous.run)
    if sample is not None and sample.drawn_with != limit:
        say(
            f"the candidates of release {previous.seq} were drawn with eval.max_candidates {sample.drawn_with}, "
            f"which is {limit} now: they are not used again"
        )
        return None
    return sample


def _candidates_of(run: RunContext, run_id: str) -> Candidates | None:
    try:
        return Candidates.from_bytes(run.store.get(_candidates_key(run_id)).data)
    except NotFoundError:
        return None


def _store_candidates(run: RunContext, candidates: Candidates) -> None:
    key = _candidates_key(run.run_id)
    if run.store.head(key) is None:
        run.store.put_new(key, candidates.to_bytes())
