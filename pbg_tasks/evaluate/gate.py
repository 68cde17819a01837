"""Quality gate: check of a candidate before it replaces the current release."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from pbg_tasks.config.gates import EVERY_OTHER
from pbg_tasks.config.limits import Check, Verdict, only_warning, percent
from pbg_tasks.config.results import NOTHING_RANKED, BothWays
from pbg_tasks.progress import fraction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import Gates
    from pbg_tasks.config.gates import DriftGates, RelationFloor
    from pbg_tasks.config.limits import AtMost
    from pbg_tasks.config.results import Against, Covered, Evaluation, Figures, Health, Metrics, TypeDrift

FALLS = ("max_mrr_drop", "max_trend_drop")
"""Names of the checks of a fall against earlier releases."""
REPLACED = "replaced"
"""Name of the check against the release whose place the candidate would take."""
_SHOWN_RELATIONS = 3
_DEVIATIONS = 2
"""Standard deviations above the expected MRR of random vectors, each about twice the real one."""


def judge(
    gates: Gates, evaluation: Evaluation, *, drift: Mapping[str, TypeDrift] | None = None, before: Metrics | None = None
) -> Verdict:
    """Judge a candidate.

    Args:
        gates: the limits.
        evaluation: of the candidate, as the task ``eval`` gives it; with the current release's figures on the same
            edges.
        drift: of the vectors of each entity type; None: it was not measured.
        before: evaluation of the current release, as it is kept with it; None when there is none.
    """
    return Verdict(tuple(_checks(gates, evaluation, drift or {}, before.health if before else {})))


def _checks(
    gates: Gates, evaluation: Evaluation, drift: Mapping[str, TypeDrift], before: Mapping[str, Health]
) -> Iterator[Check]:
    yield _finite(evaluation)
    mrr = _mrr(evaluation.filtered)
    yield _floor("min_mrr", mrr, gates.min_mrr, f"filtered MRR {fraction(mrr)}")
    yield from _over_popularity(gates, evaluation)
    yield from _over_start(gates, evaluation)
    yield from _relations(gates.relations, evaluation.relations)
    yield from _alive(evaluation)
    against = evaluation.against
    if against is not None:
        yield _drop(gates, against)
    yield from _trend(gates, evaluation)
    yield from _replaced(gates, evaluation.replaced)
    yield from _covered(gates, evaluation.coverage)
    missing = against.awaited if against is not None else None
    norms = _norms(gates.drift, evaluation.health, before)
    for check in chain(_moved(gates.drift, drift), norms):
        yield check if missing is None else only_warning(check, _no_release_of(missing))


def _mrr(figures: Figures) -> float:
    """Return the figure that is judged.

    It is NaN, which fulfils no limit, when there is none.
    """
    value = figures.figure("mrr")
    return math.nan if value is None else float(value)


def _finite(evaluation: Evaluation) -> Check:
    kinds = {"raw": evaluation.raw, "filtered": evaluation.filtered}
    figures = {f"{kind} {name}": value for kind, found in kinds.items() for name, value in found.figures().items()}
    figures |= {"filtered mrr": _mrr(evaluation.filtered)}
    bad = [name for name, value in figures.items() if not math.isfinite(value)]
    sentence = f"not a finite number: {', '.join(bad)}" if bad else "all figures are finite"
    return Check("finite", not bad, None, None, sentence)


def _floor(name: str, value: float, limit: float, measured: str) -> Check:
    return Check(name, value >= limit, _or_none(value), limit, f"{measured}, at least {limit:g} asked")


def _over_popularity(gates: Gates, evaluation: Evaluation) -> Iterator[Check]:
    """Check a model against a ranking by the entities' numbers of edges."""
    mrr, edges = _mrr(evaluation.filtered), _edges(evaluation.filtered)
    of_popularity = (evaluation.popularity or NOTHING_RANKED).figure("mrr")
    if of_popularity and gates.min_over_popularity.asked:
        ratio = mrr / of_popularity
        measured = (
            f"filtered MRR {fraction(mrr)} of {edges} held-out edges is {ratio:.3g} times that of ranking by edges in "
            f"training, {fraction(of_popularity)}"
        )
        yield gates.min_over_popularity.judge("min_over_popularity", ratio, measured, "{:g} times")


def _over_start(gates: Gates, evaluation: Evaluation) -> Iterator[Check]:
    """Check that training made the vectors better than they were before it.

    Vectors of a release rank the edges that both know, and the upper end of the interval is judged: only a fall that is
    not due to chance counts. The figures of random vectors are known without ranking; of enough edges, the vectors have
    to be better than random ones can be by chance.
    """
    limit, against = gates.min_over_start, evaluation.against
    mrr = _mrr(evaluation.filtered)
    if not limit.asked:
        return
    if against is not None and against.continued:
        started = _mrr(against.current.filtered)
        if against.reason is not None or (against.edges or 0) < gates.min_common_edges or not started > 0:
            return
        trained = _mrr(against.candidate.filtered)
        low, high = (against.difference[end] / started for end in ("low", "high"))
        ratio, form = 1 + high, "{share}"
        measured = (
            f"on the same {against.edges} edges the filtered MRR was {fraction(started)} before training, with vectors "
            f"of release {against.release}, and is {fraction(trained)} after it: {trained / started - 1:+.2%} (95 % "
            f"interval {low:+.2%} to {high:+.2%}); so {ratio:.2%} is left at best"
        )
    elif evaluation.random is not None and (expected := evaluation.random.figure("mrr")):
        edges = _edges(evaluation.filtered)
        few = edges < gates.min_common_edges
        # A reciprocal rank is at most 1, so its variance is less than its mean.
        by_chance = expected if few else expected + _DEVIATIONS * math.sqrt(expected / evaluation.filtered.count)
        ratio, form = mrr / by_chance, "{:g} times"
        of_random = f"that of random vectors, {fraction(expected)}"
        if not few:
            of_random = f"what random vectors reach by chance, {fraction(by_chance)} ({fraction(expected)} is expected)"
        measured = f"filtered MRR {fraction(mrr)} of {edges} held-out edges is {ratio:.3g} times {of_random}"
    else:
        return
    yield limit.judge("min_over_start", ratio, measured, form)


def _relations(floors: Mapping[str, RelationFloor], found: Mapping[str, BothWays]) -> Iterator[Check]:
    """Check the relations with a floor, then all others.

    Relations with a floor of their own are checked one by one, the others together.
    """
    for name, floor in floors.items():
        if name != EVERY_OTHER:
            yield _relation(name, floor, found.get(name, BothWays()))
    floor_of_others = floors.get(EVERY_OTHER)
    if floor_of_others is not None:
        yield _others(floor_of_others, {name: each for name, each in found.items() if name not in floors})


def _relation(name: str, floor: RelationFloor, found: BothWays) -> Check:
    check, edges = f"min_mrr of {name}", _edges(found.filtered)
    mrr = _mrr(found.filtered)
    if edges < floor.min_edges:
        sentence = f"{name} is not judged: {edges} held-out edges, fewer than min_edges {floor.min_edges}"
        return Check(check, passed=True, value=_or_none(mrr), limit=floor.min_mrr, sentence=sentence, warned=True)
    return _floor(check, mrr, floor.min_mrr, f"filtered MRR {fraction(mrr)} of {name} ({edges} held-out edges)")


def _others(floor: RelationFloor, found: Mapping[str, BothWays]) -> Check:
    judged = {name: _mrr(each.filtered) for name, each in found.items() if _edges(each.filtered) >= floor.min_edges}
    lowest = sorted(judged, key=lambda name: judged[name])
    below = [name for name in lowest if judged[name] < floor.min_mrr]
    named = ", ".join(f"{name} {fraction(judged[name])}" for name in below[:_SHOWN_RELATIONS])
    more = ", ..." if len(below) > _SHOWN_RELATIONS else ""
    counted = f"{len(below)} of {len(judged)} relations with {floor.min_edges} held-out edges or more have a lower MRR"
    sentence = f"{counted}{f' ({named}{more})' if below else ''}, at least {floor.min_mrr:g} asked of each"
    value = _or_none(judged[lowest[0]]) if lowest else None
    return Check(f"min_mrr of {EVERY_OTHER}", not below, value, floor.min_mrr, sentence)


def _edges(ranked: Figures) -> int:
    """Return the number of held-out edges of figures.

    Each edge is ranked on both sides.
    """
    return ranked.count // 2


def _alive(evaluation: Evaluation) -> Iterator[Check]:
    """Check the problems of the embeddings themselves, by entity type."""
    for entity, health in evaluation.health.items():
        problems = health.problems
        sentence = f"{entity}: {'; '.join(problems) or 'the embeddings are finite and have not collapsed'}"
        yield Check(f"health of {entity}", not problems, health.cosine, None, sentence)


def _drop(gates: Gates, against: Against) -> Check:
    name, limit = FALLS[0], gates.max_mrr_drop
    release = f"release {against.release}"
    undecided = _undecided(name, limit, gates, against, release)
    if undecided is not None:
        return undecided
    drop, measured = _fall(against, release)
    sentence = f"{measured}, a fall of {100 * limit:g}% allowed"
    if (missing := against.awaited) is not None:
        sentence += f"; that is a release of {against.snapshot!r}, {_no_release_of(missing)}"
    return Check(name, drop <= limit, _or_none(drop), limit, sentence)


def _trend(gates: Gates, evaluation: Evaluation) -> Iterator[Check]:
    """Check the run against the best release of the last nights.

    The best of many owes part of its figure to chance, the more the fewer edges are compared. So a fall only warns
    where the interval does not exclude that there is none.
    """
    best, against = evaluation.best, evaluation.against
    limit = gates.max_trend_drop
    if best is None or not limit.asked:
        return
    name, release = FALLS[1], f"release {best.release}, the best of the last {gates.trend_nights} nights,"
    if against is not None and against.release == best.release:
        if _undecided(name, None, gates, against, release) is None:  # otherwise the check before has the reason
            yield _fall_of_trend(name, limit, against, release)
        return
    undecided = _undecided(name, limit.block, gates, best, release.rstrip(","))
    if undecided is not None:
        yield replace(undecided, warned=undecided.passed)
        return
    yield _fall_of_trend(name, limit, best, release)


def _fall_of_trend(name: str, limit: AtMost, best: Against, release: str) -> Check:
    check = limit.judge(name, *_fall(best, release), "a fall of {share}")
    by_chance = best.difference["high"] >= 0
    return only_warning(check, "as it may be chance: the interval has no fall, too") if by_chance else check


def _replaced(gates: Gates, replaced: Against | None) -> Iterator[Check]:
    """Check the run against the release whose place it would take.

    Where only settings differ, any fall that is not due to chance counts: nothing else speaks for the run. A corrected
    day has other edges, whose MRR may fall for good reasons, so it may fall as far as any night.
    """
    if replaced is None:
        return
    release = f"release {replaced.release} (run {replaced.run}), whose place it would take,"
    limit = None if replaced.repeats else gates.max_mrr_drop
    few = gates.model_copy(update={"min_common_edges": 1}) if replaced.repeats else gates
    undecided = _undecided(REPLACED, limit, few, replaced, release.rstrip(","))
    if undecided is not None:
        yield replace(undecided, warned=undecided.passed)
        return
    drop, measured = _fall(replaced, release)
    if limit is None:
        sentence = f"{measured}; of a run with its files and start, no fall beyond the interval is allowed"
        passed = replaced.difference["high"] >= 0
    else:
        sentence, passed = f"{measured}, a fall of {100 * limit:g}% allowed", drop <= limit
    if not passed:
        sentence += "; `--no-publish` leaves that release where it is"
    yield Check(REPLACED, passed, _or_none(drop), limit, sentence)


def _undecided(name: str, limit: float | None, gates: Gates, against: Against, release: str) -> Check | None:
    """Return the check of an undecided comparison."""
    reason, edges = against.reason, against.edges or 0
    then = _mrr(against.current.filtered)
    if reason is None and edges < gates.min_common_edges:
        sentence = (
            f"not compared with {release}: only {edges} held-out edges are between entities that both know, fewer "
            f"than min_common_edges {gates.min_common_edges}"
        )
        passed = gates.on_few_common_edges == "warn"
        return Check(name, passed=passed, value=None, limit=limit, sentence=sentence, warned=passed)
    if reason is None and then <= 0:
        reason = f"its filtered MRR is {then:g}"
    if reason is None:
        return None
    return Check(name, passed=True, value=None, limit=limit, sentence=f"not compared with {release}: {reason}")


def _fall(against: Against, release: str) -> tuple[float, str]:
    """Return the relative fall against a release, and a sentence on it."""
    now, then = _mrr(against.candidate.filtered), _mrr(against.current.filtered)
    low, high = (against.difference[end] / then for end in ("low", "high"))
    fall = 1 - now / then
    return fall, (
        f"filtered MRR {fraction(now)} where {release} has {fraction(then)} on the same {against.edges} edges: "
        f"{-fall:+.1%} (95 % interval {low:+.1%} to {high:+.1%})"
    )


def _no_release_of(snapshot: str) -> str:
    return f"for {snapshot!r}, which comes between, has no release yet"


def _covered(gates: Gates, coverage: Mapping[str, Covered]) -> Iterator[Check]:
    for entity, found in coverage.items():
        if found.new and gates.min_coverage.asked:
            share = found.covered / found.new
            measured = f"{percent(share)} of {found.new} new entities of type {entity} were reached by training"
            yield gates.min_coverage.judge(f"min_coverage of {entity}", share, measured, "{share}")


def _moved(gates: DriftGates, types: Mapping[str, TypeDrift]) -> Iterator[Check]:
    for entity, found in types.items():
        for name, limit, value, what in (
            ("min_cosine", gates.min_cosine, found.cosine.mean, "mean cosine to the release before"),
            ("min_overlap", gates.min_overlap, found.overlap.mean, "share of nearest neighbours that were kept"),
        ):
            if limit.asked and value is not None:
                yield limit.judge(f"drift.{name} of {entity}", value, f"{entity}: {what} {fraction(value)}")


def _norms(gates: DriftGates, now: Mapping[str, Health], before: Mapping[str, Health]) -> Iterator[Check]:
    for entity in sorted(now.keys() & before.keys()):
        norm, was = (health[entity].norm_median for health in (now, before))
        if gates.max_norm_change.asked and norm and was:
            measured = f"{entity}: median norm {norm:.4g} after {was:.4g}"
            change = max(norm / was, was / norm)
            name = f"drift.max_norm_change of {entity}"
            yield gates.max_norm_change.judge(name, change, measured, "a factor of {:g}")


def _or_none(value: float) -> float | None:
    """Return a figure for JSON, which cannot represent NaN."""
    return round(value, 6) if math.isfinite(value) else None
