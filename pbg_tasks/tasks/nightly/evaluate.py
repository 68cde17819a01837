"""``eval``: rank held-out edges against every entity.

It reads the files that will be released. Parts may count the candidates before it, each in a process of its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from pbg_tasks.config.names import part_name
from pbg_tasks.config.results import (
    BucketResult,
    EvalPart,
    EvalPartResult,
    EvalResult,
    Evaluation,
    PartitionResult,
    Result,
)
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.evaluate.counts import PartCounting, Share
from pbg_tasks.evaluate.evaluation import BLOCK_EDGES, EdgeRanking
from pbg_tasks.evaluate.health import Health
from pbg_tasks.evaluate.sampling import Sample, relation_edges
from pbg_tasks.formats.embeddings import iter_blocks
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.baseline import bring_baseline, bring_by_name
from pbg_tasks.tasks.nightly.bucket import require_held_out
from pbg_tasks.tasks.nightly.candidates import store_candidates, stored_candidates
from pbg_tasks.tasks.nightly.comparison_target import incomparable, repeats
from pbg_tasks.tasks.nightly.coverage import open_coverage
from pbg_tasks.tasks.nightly.evaluation_parts import (
    Releases,
    choose_releases,
    chosen_releases,
    merged_counts,
    parts_have_drift,
    parts_taken,
    store_counts,
    store_drift,
    stored_drift,
)
from pbg_tasks.tasks.nightly.kept_counts import are_kept, kept_counts, store_kept_counts
from pbg_tasks.tasks.nightly.moved_vectors import Comparison, partition_drifts, with_compared_rows
from pbg_tasks.tasks.nightly.yardstick import changes_of
from pbg_tasks.tasks.runs.base import bring_model
from pbg_tasks.tasks.runs.night import NightRun
from pbg_tasks.tasks.runs.part_files import NOTHING, PartFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.compared_model import ComparedModel
    from pbg_tasks.evaluate.counts import Counting
    from pbg_tasks.evaluate.coverage import Coverage
    from pbg_tasks.evaluate.evaluation import EdgeStream
    from pbg_tasks.evaluate.ids import Bucket
    from pbg_tasks.evaluate.local_model import LocalModel
    from pbg_tasks.evaluate.paired_comparison import PairedComparison
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.nightly.baseline import Baseline

HEALTH_ROWS = 1 << 14


def evaluate(url: str, parts: int | None = None) -> Result:
    """Evaluate a run and the release before on the run's held-out edges.

    The figures of ``drift`` are part of the result, because both models are on the local disk here, or were where the
    parts ran.

    Args:
        url: of the run.
        parts: number of parts that counted the candidates, whose counts are added; None: candidates are read here.

    Raises:
        ConfigError: a part is missing.
        FormatError: a part is damaged, or had other edges, candidates or releases.
        QualityGateError: there is nothing held out to evaluate on.
    """

    def body(run: RunContext) -> Evaluation:
        if parts is None:
            return _evaluate(run, Releases.of(run))
        counting = merged_counts(run, parts)  # first, because it takes no model to find that a part is missing
        found = _evaluate(run, chosen_releases(run), counting, parts)
        return found if (taken := parts_taken(run, parts)) is None else found.model_copy(update={"parts": taken})

    return perform(EvalResult, url, body).document()


def count_part(url: str, part: str) -> Result:
    """Count the candidates of one part of a run's evaluation.

    Args:
        url: of the run.
        part: ``i/n``.

    Raises:
        ConfigError: there is no such part.
        QualityGateError: there is nothing held out to evaluate on.
    """
    share = Share.parse(part)
    choose_releases(url)
    task = part_name(EvalResult.TASK, part)
    return perform(EvalPartResult, url, lambda run: _count(run, share), task=task).document()


def _count(run: RunContext, share: Share) -> EvalPart:
    with Scratch() as scratch:
        releases = chosen_releases(run)
        brought = _Brought.of(run, scratch.path, releases, share)
        counting = PartCounting(share.partitions(brought.night.counts))
        known = partial(brought.night.edges, "valid", "test", "train", size=BLOCK_EDGES)
        candidates = _ranked(run, brought, known, None, counting).candidates
        drift = None
        if (baseline := brought.baseline) is not None:
            drifts = partition_drifts(run, baseline, brought.tonight, candidates, counting.share)
            drift = store_drift(run, drifts, scratch.path)
    return store_counts(run, share, counting, releases, drift)


@dataclass(frozen=True)
class _Brought:
    """Models of an evaluation on the local disk.

    Attributes:
        night: tonight's run.
        held_out: edges that may be asked, by bucket.
        tonight: its model.
        baseline: the release before; None: there is none.
        compared: its model, where it can be ranked.
        reason: it cannot be ranked for.
        best_compared: model of the best release, where there is one that can be ranked.
        best_reason: it cannot be ranked for.
        replaced_compared: model of the release whose place the run would take, where it can be ranked.
        replaced_reason: it cannot be ranked for.
    """

    night: NightRun
    held_out: dict[Bucket, EdgeList]
    tonight: LocalModel
    baseline: Baseline | None
    compared: ComparedModel | None
    reason: str | None
    best_compared: ComparedModel | None
    best_reason: str | None
    replaced_compared: ComparedModel | None = None
    replaced_reason: str | None = None

    @classmethod
    def of(
        cls,
        run: RunContext,
        scratch: Path,
        releases: Releases,
        share: Share | None = None,
        *,
        counted: bool = False,
        compared: bool = False,
    ) -> Self:
        """Download the models into new folders of ``scratch``.

        Args:
            run: the night.
            scratch: local directory.
            releases: that are ranked beside it.
            share: of the candidates: of other partitions, only rows that are read alone, where that is less; None: all.
            counted: whether parts counted the candidates, so that no vectors of the best release are read.
            compared: whether they compared the vectors of the release before too, so that none of it are read either.

        Raises:
            QualityGateError: there is nothing held out to evaluate on.
        """
        bucketed = run.need(BucketResult)
        # An earlier version's ``bucket`` did not ask.
        require_held_out(run, bucketed.edges, bucketed.returned_pairs)
        counts, current = run.need(PartitionResult).counts, releases.current
        best = releases.best
        directory, before, third, fourth = (scratch / name for name in ("now", "before", "best", "replaced"))
        for path in (directory, before, third, fourth):
            path.mkdir()
        night = NightRun.preserved(run, directory)
        held_out = dict(night.edges(run.spec.graph.eval.split))
        part = None if share is None else _part_of(run, night, share, held_out)
        read = NOTHING if compared else part
        baseline = bring_baseline(run, current, counts, before, read) if current is not None else None
        if part is not None and baseline is not None:
            part = with_compared_rows(run, part, baseline)
        tonight = bring_model(night, directory, part)
        reason = incomparable(run, current) if current is not None else None
        before_it = None
        if baseline is not None and reason is None:
            previous, whole = run.spec.previous, share is None and not counted
            # The places of entities, by which kept counts know them, are tonight's where the ids are.
            may_correct = whole and previous is not None and previous.keep_ids and are_kept(baseline.config)
            kept = kept_counts(run, baseline.release, baseline.rows) if may_correct else None
            before_it = baseline.compared(run.config, tonight.relations, kept)
        best_compared, best_reason = (before_it, reason) if best is not None else (None, None)
        read = NOTHING if counted else None
        if best is not None and (current is None or best.seq != current.seq):
            best_compared, best_reason = _bring_other(run, best, counts, third, tonight, read)
        replaced_compared = replaced_reason = None
        if (replaced := releases.replaced) is not None and (replaced_reason := incomparable(run, replaced)) is None:
            replaced_compared, replaced_reason = _bring_other(run, replaced, counts, fourth, tonight, read)
            if replaced_compared is not None:
                replaced_compared = replace(replaced_compared, repeats=repeats(run, replaced))
        return cls(
            night=night,
            held_out=held_out,
            tonight=tonight,
            baseline=baseline,
            compared=before_it,
            reason=reason,
            best_compared=best_compared,
            best_reason=best_reason,
            replaced_compared=replaced_compared,
            replaced_reason=replaced_reason,
        )


def _part_of(run: RunContext, night: NightRun, share: Share, held_out: Mapping[Bucket, EdgeList]) -> PartFiles:
    """Return which files and rows a part reads."""
    graph = run.spec.graph
    asked = Sample.of(held_out, graph.eval.max_edges, relation_edges=relation_edges(graph.gates)).edges
    return PartFiles.of(run.config, share.partitions(night.counts), asked, len(night.relation_names()))


def _ranked(
    run: RunContext, brought: _Brought, known: EdgeStream, train: EdgeStream | None, counting: Counting | None
) -> EdgeRanking:
    """Rank held-out edges by the models of an evaluation."""
    graph = run.spec.graph
    ranking = EdgeRanking(
        brought.tonight,
        brought.held_out,
        known,
        train,
        evaluation=graph.eval,
        candidates=stored_candidates(run),
        compared=brought.compared,
        best=brought.best_compared,
        replaced=brought.replaced_compared,
        gates=graph.gates,
        seed=graph.train.seed,
        counting=counting,
    )
    ranking.rank(graph.resources.threads or usable_cpus(), int(graph.resources.memory_gb * 1e9))
    return ranking


def _evaluate(
    run: RunContext, releases: Releases, counting: Counting | None = None, parts: int | None = None
) -> Evaluation:
    config = run.config
    current, best = releases.current, releases.best
    found: dict[str, object] = {}
    with Scratch() as scratch:
        compared = parts is not None and parts_have_drift(run, parts)
        brought = _Brought.of(run, scratch.path, releases, counted=counting is not None, compared=compared)
        night, tonight = brought.night, brought.tonight
        baseline = brought.baseline
        start = scratch.path / "start"
        start.mkdir()
        coverage = (
            open_coverage(run, baseline, tonight.paths, len(tonight.relations), start) if baseline is not None else None
        )
        ranking = _ranked(
            run,
            brought,
            lambda: night.edges("valid", "test", size=BLOCK_EDGES),
            lambda: _noted(night.edges("train", size=BLOCK_EDGES), coverage),
            counting,
        )
        if counting is None:  # parts do not record which of their tiles were not settled
            found["kept"] = store_kept_counts(run, ranking.kept()).document()
        report, candidates = ranking.report(), ranking.candidates
        del ranking  # with all known edges, before the models are compared
        health = {entity: _health(config, entity, tonight.paths).to_json() for entity in config.entities}
        if candidates is not None:
            store_candidates(run, candidates)
        drift = None
        if baseline is not None:
            # Here, where both models are on the local disk: `drift` would have to fetch and verify them again.
            drifts = (
                stored_drift(run, parts, baseline, start)
                if parts is not None and compared
                else partition_drifts(run, baseline, tonight, candidates)
            )
            comparison = Comparison(run, baseline, tonight.relations, night, candidates)
            drift = comparison.findings(drifts)
    found |= {**report.to_json(), "health": health}
    if current is not None:
        facts: dict[str, object] = {"awaited": releases.awaited} if releases.awaited is not None else {}
        facts |= {"continued": True} if baseline is not None and baseline.continued else {}
        found["against"] = _beside(current, brought.reason, report.against) | facts
    if best is not None:
        found["best"] = _beside(best, brought.best_reason, report.best)
    if (replaced := releases.replaced) is not None:
        facts = {"run": replaced.run, "repeats": repeats(run, replaced)}
        found["replaced"] = _beside(replaced, brought.replaced_reason, report.replaced) | facts
    found |= {"coverage": coverage.to_json()} if coverage is not None else {}
    found |= {"drift": drift} if drift is not None else {}
    evaluated = Evaluation.model_validate(found)
    changes = changes_of(evaluated)
    return evaluated.model_copy(update={"changes": changes}) if changes else evaluated


def _beside(release: Release, reason: str | None, measured: PairedComparison | None) -> dict[str, object]:
    """Return the keys of a comparison with an earlier release."""
    about = {"release": release.seq, "snapshot": release.snapshot, "reason": reason}
    return about | (asdict(measured) if measured is not None else {})


def _bring_other(
    run: RunContext,
    release: Release,
    counts: Mapping[str, list[int]],
    directory: Path,
    tonight: LocalModel,
    part: PartFiles | None,
) -> tuple[ComparedModel | None, str | None]:
    """Return another release's model, or the reason for its lack.

    The night goes on without it: the release that it continues is compared all the same.
    """
    try:
        return bring_by_name(run, release, counts, directory, part).compared(run.config, tonight.relations), None
    except NotFoundError:
        reason = "it was removed meanwhile"
    except FormatError as error:
        reason = f"it is damaged ({error})"
    say(f"warning: release {release.seq} of snapshot {release.snapshot!r} is not compared: {reason}")
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
