"""``eval``: rank held-out edges against every entity.

It reads the files that will be released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.results import BucketResult, EvalResult, Evaluation, PartitionResult, Result
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.evaluate.evaluation import PIECE_EDGES, evaluate_edges
from pbg_tasks.evaluate.health import Health
from pbg_tasks.formats.embeddings import iter_blocks
from pbg_tasks.memory import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.baseline import bring_baseline, bring_by_name
from pbg_tasks.tasks.nightly.bucket import require_held_out
from pbg_tasks.tasks.nightly.candidates import store_candidates, stored_candidates
from pbg_tasks.tasks.nightly.comparison_target import awaited, incomparable, release_before
from pbg_tasks.tasks.nightly.coverage import open_coverage
from pbg_tasks.tasks.nightly.moved_vectors import Comparison
from pbg_tasks.tasks.nightly.yardstick import best_release, changes_of
from pbg_tasks.tasks.runs.base import bring_model
from pbg_tasks.tasks.runs.night import NightRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.compared_model import ComparedModel
    from pbg_tasks.evaluate.coverage import Coverage
    from pbg_tasks.evaluate.local_model import LocalModel
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.publish import Release

HEALTH_ROWS = 1 << 14


def evaluate(url: str) -> Result:
    """Evaluate a run and the release before on the run's held-out edges.

    The figures of ``drift`` are part of the result, because both models are on the local disk here.

    Raises:
        QualityGateError: there is nothing held out to evaluate on.
    """
    return perform(EvalResult, url, _evaluate).document()


def _evaluate(run: RunContext) -> Evaluation:
    bucketed = run.need(BucketResult)
    require_held_out(run, bucketed.edges, bucketed.returned_pairs)  # an earlier version's ``bucket`` did not ask
    graph, config, counts = run.spec.graph, run.config, run.need(PartitionResult).counts
    with Scratch() as scratch:
        directory, before, start, third = (scratch.path / name for name in ("now", "before", "start", "best"))
        for path in (directory, before, start, third):
            path.mkdir()
        night = NightRun.preserved(run, directory)
        tonight = bring_model(night, directory)
        held_out = dict(night.edges(graph.eval.split))
        missing = awaited(run)
        current = release_before(run)
        baseline = bring_baseline(run, current, counts, before) if current is not None else None
        reason = incomparable(run, current) if current is not None else None
        rival = baseline.compared(config, tonight.relations) if baseline is not None and reason is None else None
        best = best_release(run, current)
        best_rival, best_reason = (rival, reason) if best is not None else (None, None)
        if best is not None and (current is None or best.seq != current.seq):
            best_rival, best_reason = _bring_best(run, best, counts, third, tonight)
        coverage = (
            open_coverage(run, baseline, tonight.paths, len(tonight.relations), start) if baseline is not None else None
        )
        report, candidates = evaluate_edges(
            tonight,
            held_out,
            lambda: night.edges("valid", "test", size=PIECE_EDGES),
            train=lambda: _noted(night.edges("train", size=PIECE_EDGES), coverage),
            evaluation=graph.eval,
            candidates=stored_candidates(run),
            compared=rival,
            best=best_rival,
            gates=graph.gates,
            threads=graph.resources.threads or usable_cpus(),
            memory_bytes=int(graph.resources.memory_gb * 1e9),
            seed=graph.train.seed,
        )
        health = {entity: _health(config, entity, tonight.paths).to_json() for entity in config.entities}
        if candidates is not None:
            store_candidates(run, candidates)
        # Here, where both models are on the local disk: `drift` would have to fetch and verify them again.
        drift = Comparison(run, baseline, tonight, directory, candidates).findings() if baseline is not None else None
    found = report.to_json() | {"health": health}
    if current is not None:
        compared = {"release": current.seq, "snapshot": current.snapshot, "reason": reason}
        compared |= {"awaited": missing} if missing is not None else {}
        compared |= {"continued": True} if baseline is not None and baseline.continued else {}
        found["against"] = compared | found.get("against", {})
    if best is not None:
        found["best"] = {"release": best.seq, "snapshot": best.snapshot, "reason": best_reason} | found.get("best", {})
    found |= {"coverage": coverage.to_json()} if coverage is not None else {}
    found |= {"drift": drift} if drift is not None else {}
    evaluated = Evaluation.model_validate(found)
    changes = changes_of(evaluated)
    return evaluated.model_copy(update={"changes": changes}) if changes else evaluated


def _bring_best(
    run: RunContext, best: Release, counts: Mapping[str, list[int]], directory: Path, tonight: LocalModel
) -> tuple[ComparedModel | None, str | None]:
    """Return the best release's model, or the reason for its lack.

    The night goes on without it: the release that it continues is compared all the same.
    """
    try:
        return bring_by_name(run, best, counts, directory).compared(run.config, tonight.relations), None
    except NotFoundError:
        reason = "it was removed meanwhile"
    except FormatError as error:
        reason = f"it is damaged ({error})"
    say(f"warning: release {best.seq}, the best of the last nights, is not compared: {reason}")
    return None, reason


def _noted(
    edges: Iterator[tuple[tuple[int, int], EdgeList]], coverage: Coverage | None
) -> Iterator[tuple[tuple[int, int], EdgeList]]:
    """Let ``coverage`` see training edges as they pass by."""
    for bucket, listed in edges:
        if coverage is not None:
            coverage.add(bucket, listed)
        yield bucket, listed


def _health(config: ConfigSchema, entity: str, paths: Mapping[tuple[str, int], Path]) -> Health:
    """Measure whether the embeddings of a type are finite and varied."""
    blocks = (
        block
        for partition in range(config.entities[entity].num_partitions)
        for _, block in iter_blocks(paths[entity, partition], HEALTH_ROWS)
    )
    return Health.of(blocks)
